# SPDX-License-Identifier: Apache-2.0
"""Imports point downwards only: recipes and the lab use sam_core's public names, sam_core's core knows no engine."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {name: ROOT / name for name in ("sam_lab", "llm_rl")}
PACKAGES["sam_core"] = ROOT / "sam_core" / "src" / "sam_core"
ENGINES = re.compile(r"(?<![a-z])(vllm|verl|ray)(?![a-z])", re.IGNORECASE)
MAY_IMPORT = {
    "sam_core": {"sam_core"},
    "llm_rl": {"llm_rl", "sam_core"},
    "sam_lab": {"sam_lab", "sam_core", "llm_rl"},
}
"""Packages of this repository that each package may import."""


def name(root, path):
    """The dotted name of a module's file below the folder that holds its package."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(tree, module, is_package):
    """(line, dotted name, local name or None) of every module or object that a file imports, wherever it does."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            parent = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (parent, node.module)))
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}", alias.asname or alias.name


def code(tree):
    """The text of a file without comments and docstrings."""
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            is_text = [isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in body]
            node.body = [line for line, text in zip(body, is_text, strict=True) if not text] or [ast.Pass()]
    return ast.unparse(tree)


def violations(source, module, is_package=False):
    """One sentence for each import or name that a file of this module must not hold."""
    tree = ast.parse(source)
    top = module.partition(".")[0]
    core = top == "sam_core" and not f"{module}.".startswith("sam_core.engines.")
    text = code(tree)
    for line, target, local in imports(tree, module, is_package):
        package = target.partition(".")[0]
        if package in PACKAGES and package not in MAY_IMPORT[top]:
            yield f"{module}:{line} imports {target}, which lies above it"
        if package in PACKAGES and package != top:
            used = re.findall(rf"(?<![\w.]){local}\.(?:\w+\.)*_(?!_)\w+", text)
            for name in [name for name in (target, *used) if re.search(r"\._(?!_)", name)]:
                yield f"{module}:{line} imports {name}, a private name of {package}"
        if core and target.startswith("sam_core.engines"):
            yield f"{module}:{line} imports {target}: only sam_core.engines knows engines"
        if module.startswith("sam_core.engines.vllm") and target.startswith("sam_core.engines.verl"):
            yield f"{module}:{line} imports {target}, which lies above it"
    for match in ENGINES.finditer(text) if core else ():
        yield f"{module} names {match[0]}: only sam_core.engines knows engines"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_downwards(package):
    folder, broken = PACKAGES[package], []
    assert any(folder.rglob("*.py"))
    for path in sorted(folder.rglob("*.py")):
        broken += violations(path.read_text(), name(folder.parent, path), path.name == "__init__.py")
    assert not broken, "\n".join(broken)


def test_a_broken_import_is_found():
    for module, source in (
        ("sam_core.proposer", "from .engines.vllm import config"),
        ("sam_core.engines.vllm.config", "from sam_core.engines.verl import seeds"),
        ("sam_core.options", 'find_spec("vllm")'),
        ("llm_rl.launch", "def f():\n    from sam_lab.plan import command"),
        ("sam_lab.replay", "import sam_core._sam"),
        ("sam_lab.replay", "import sam_core.cost as c\nc.StepCost._fit = None"),
    ):
        assert list(violations(source, module)), source
