# SPDX-License-Identifier: Apache-2.0
"""Functions of an engine or a trainer that sam_core relies on or rebinds, and checks of their sources."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple


def rebind(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute of a class or module by `make(original)`."""
    setattr(owner, name, rebound(getattr(owner, name), make))


def rebound(original: Any, make: Callable[[Any], Any]) -> Any:
    """`make(original)`, with the original's name."""
    return functools.wraps(original)(make(original))


class Older(NamedTuple):
    """The form of a hook in earlier releases.

    until: the last release with this form.
    parameters, has: as in Hook; parameters None: there was no such function.
    """

    until: str
    parameters: str | None
    has: tuple[str, ...] = ()


class Hook(NamedTuple):
    """A function of a package.

    file, owner, name: where the function is; owner is its class, or empty.
    parameters: the names of its first parameters, as the package or `sam` passes them.
    has: expressions that its body must contain, since `sam` relies on them.
    why: what `sam` rebinds it for; empty if `sam` calls or extends it.
    older: its earlier forms, the latest first.
    """

    file: str
    owner: str
    name: str
    parameters: str
    has: tuple[str, ...] = ()
    why: str = ""
    older: tuple[Older, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}: {self.owner and self.owner + '.'}{self.name}"


def read_table(file: Path) -> tuple[Hook, ...]:
    """The hooks of a text file. Its lines begin with these words; a backslash continues a line.

    file FILE: of the functions that follow.
    def OWNER.NAME(PARAMETERS): a hook.
    why WHY, has EXPRESSION: of this hook.
    until RELEASE (PARAMETERS), or until RELEASE absent: an earlier form; its expressions follow.
    """
    found: list[Hook] = []
    path = ""
    for line in re.sub(r"\\\n *", "", file.read_text()).splitlines():
        word, _, rest = line.strip().partition(" ")
        names = " ".join(rest.partition("(")[2].rstrip(")").replace(",", "").split())
        needed = {"def": path, "why": found, "has": found, "until": found and ("(" in rest or rest.endswith(" absent"))}
        if word in needed and not (rest and needed[word]):
            raise ValueError(f"{file}: this line lacks something or comes too early: {line.strip()!r}")
        if word == "file":
            path = rest
        elif word == "def":
            owner, _, name = rest.partition("(")[0].rpartition(".")
            found.append(Hook(path, owner, name, names))
        elif word == "why":
            found[-1] = found[-1]._replace(why=rest)
        elif word == "until":
            old = Older(rest.split()[0], None if rest.endswith("absent") else names)
            found[-1] = found[-1]._replace(older=(*found[-1].older, old))
        elif word == "has":
            *older, form = found[-1].older or (found[-1],)
            form = form._replace(has=(*form.has, rest))
            found[-1] = form if isinstance(form, Hook) else found[-1]._replace(older=(*older, form))
        elif word.strip("#"):
            raise ValueError(f"{file}: a line begins with {word!r}")
    return tuple(found)


@functools.cache
def tree(file: Path) -> ast.Module | None:
    """The syntax tree of a file; None if there is none."""
    return ast.parse(file.read_text()) if file.is_file() else None


@functools.cache
def _find(folder: Path, file: str, owner: str, name: str) -> tuple[list[str], str] | None:
    """A function's parameters and its text; None if it is not there."""
    module = tree(folder / file)
    body: list[ast.stmt] = module.body if module else []
    if owner:
        body = next((each.body for each in body if isinstance(each, ast.ClassDef) and each.name == owner), [])
    functions = (each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    if (function := next((each for each in functions if each.name == name), None)) is None:
        return None
    return [each.arg for each in function.args.args + function.args.kwonlyargs], _plain(ast.unparse(function))


def _plain(expression: str) -> str:
    """The expression without differences in notation: whitespace, quotes, trailing commas."""
    return "".join(expression.split()).replace('"', "'").replace(",)", ")")


def installed(module: str) -> Path | None:
    """The folder of an installed package, which is not imported; None without one."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def problem(folder: Path, hook: Hook) -> str | None:
    """How a hook differs from what is expected in this copy of its package; None if it fits."""
    found = _find(folder, hook.file, hook.owner, hook.name)
    if found is None:
        return f"{hook} is missing"
    (have, text), want = found, hook.parameters.split()
    if have[: len(want)] != want:
        return f"{hook} has parameters ({', '.join(have[: len(want)])}) instead of ({', '.join(want)})"
    return next((f"{hook} no longer has `{each}`" for each in hook.has if _plain(each) not in text), None)


class Hooks(NamedTuple):
    """The hooks of a package. A copy of the package fits if all hooks have the form of the same release.

    package, module: its name, and the name by which it is imported.
    releases: those in which all hooks fit, ascending.
    table: the hooks in the form of the last release.
    marker: a folder that each copy of the package has.
    is_patched: whether a copy of the package has this project's patches.
    """

    package: str
    module: str
    releases: tuple[str, ...]
    table: tuple[Hook, ...]
    marker: str
    is_patched: Callable[[Path], bool]

    @property
    def known(self) -> str:
        """The releases, for a sentence."""
        return " to ".join(dict.fromkeys((self.releases[0], self.releases[-1])))

    def as_of(self, hook: Hook, release: str) -> Hook | None:
        """The hook in the form that a release has; None if the release has no such function."""
        at = self.releases.index(release)
        for old in reversed(hook.older):
            if at <= self.releases.index(old.until):
                return None if old.parameters is None else hook._replace(parameters=old.parameters, has=old.has)
        return hook

    def compare(self, folder: Path, table: Iterable[Hook] | None = None) -> tuple[str, dict[Hook, str | None]]:
        """The release that a copy of the package matches best, and the problem of each of its hooks, None if it fits.

        table: the hooks to compare; by default all.
        """
        table, found = tuple(self.table if table is None else table), {}
        for release in reversed(self.releases):
            hooks = filter(None, (self.as_of(hook, release) for hook in table))
            found[release] = {hook: problem(folder, hook) for hook in hooks}
            if not any(found[release].values()):
                return release, found[release]
        return max(found.items(), key=lambda each: sum(not what for what in each[1].values()))

    def problems(self, folder: Path, table: Iterable[Hook] | None = None) -> list[str]:
        """The problems of a copy of the package, one phrase each; table: as in `compare`."""
        return [*filter(None, self.compare(folder, table)[1].values())]

    def check(self, folder: Path, version: str, remedy: str) -> None:
        """Raise ValueError, one sentence that ends with the remedy, unless all hooks fit a copy of the package.

        version: the installed version.
        """
        if found := self.problems(folder):
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise ValueError(
                f"speculative method 'sam' knows {self.package} {self.known} and does not fit the installed {version}: "
                f"{found[0]}{more}; {remedy}"
            )

    def main(self, name: str) -> int:
        """The program `python -m NAME [FOLDER]`; returns its exit status."""
        parser = argparse.ArgumentParser(
            prog=f"python -m {name}",
            description=f"Print the functions of {self.package} that method sam relies on, and whether a copy of it "
            f"has them as in {self.known}; exit with 1 if not.",
        )
        parser.add_argument(
            "folder", nargs="?", type=Path, help=f"folder of the package {self.module} (default: the installed one)"
        )
        folder = parser.parse_args().folder
        if folder is None:
            folder = installed(self.module)
            if folder is None:
                parser.error(f"{self.package} is not installed here: name the folder of a copy")
        if not (folder / self.marker).is_dir():
            parser.error(f"{folder} is no copy of the package {self.module}: it has no folder {self.marker}")
        if self.is_patched(folder):
            print(f"{folder} has this project's patches, which provide method sam: nothing is rebound.")
            return 0
        release, found = self.compare(folder)
        for hook, what in found.items():
            print(
                f"  {'MISSING' if what else 'ok':8}{hook}  ({hook.why or 'called or extended'})"
                + (f"\n          {what}" if what else "")
            )
        missing = sum(map(bool, found.values()))
        print(f"{folder}: {len(found) - missing} of {len(found)} hooks fit, as of {release}.")
        return int(missing > 0)
