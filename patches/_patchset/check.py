# SPDX-License-Identifier: Apache-2.0
"""Check the stored files of a pin set against each other, the record and the source distributions."""

import re
from pathlib import Path

from . import sdist, series
from .git import Failure
from .pins import REPO, Module, PinSet

TRAILERS = ("Upstream", "Remove-when", "Tests")


def check(pinset: PinSet, sdists: str | None, offline: bool) -> list[str]:
    """One sentence for each problem of a pin set; `offline` skips checks that need the source distributions."""
    problems = [
        f"{folder} has patches, but {pinset.file} has no [module.{folder.name}]."
        for folder in sorted({file.parent for file in pinset.folder.glob("*/*.patch")})
        if folder.name not in pinset.modules
    ]
    for module in pinset.modules.values():
        problems += numbering(module)
        try:
            patches = series.load(module)
        except Failure as error:
            problems.append(str(error))
            continue
        for patch in patches:
            problems += trailers(patch)
        try:
            series.stored(module)
            if not offline:
                against_sdist(module, patches, sdists)
        except Failure as error:
            problems.append(str(error))
    if not problems and pinset.text() != pinset.file.read_text():
        problems.append(f"{pinset.file} differs from what export writes: export one of its modules again.")
    return problems


def numbering(module: Module) -> list[str]:
    """Sentences about files that are not patches, and about missing or duplicate numbers."""
    if not module.folder.is_dir():
        return []
    problems, number = [], 0
    for file in sorted(module.folder.iterdir()):
        name = series.FILE_NAME.fullmatch(file.name)
        if not name:
            problems.append(f"{file} is not a patch named NNNN-<what>.patch: remove it.")
            continue
        number += 1
        if int(name[1]) != number:
            problems.append(f"{file} has the number {name[1]}, expected {number:04}: export {module.name} again.")
            number = int(name[1])
    return problems


def trailers(patch: series.Patch) -> list[str]:
    """Sentences about missing trailers, and about tests that do not exist."""
    names = [name for name, _ in patch.trailers]
    problems = [f"{patch.file} has no trailer {name}: in its last paragraph." for name in TRAILERS if name not in names]
    for name, value in patch.trailers:
        if name == "Tests" and not has_test(value):
            problems.append(f"{patch.file} names the test {value}, which does not exist below {REPO}.")
    return problems


def has_test(name: str) -> bool:
    """Whether the test `path` or `path::[Class::]function` exists; parameters in [...] are ignored."""
    path, *parts = name.partition("[")[0].split("::")
    file = REPO / path
    if Path(path).is_absolute() or ".." in Path(path).parts or not file.exists() or (parts and not file.is_file()):
        return False
    text = file.read_text() if parts else ""
    return all(re.search(rf"^ *(async def|def|class) {re.escape(part)}\b", text, re.MULTILINE) for part in parts)


def against_sdist(module: Module, patches: list[series.Patch], sdists: str | None) -> None:
    """Raise Failure unless the patches apply to the source distribution, as recorded and as export writes them."""
    record, texts = series.replay(module, sdist.locate(module, sdists), patches)
    if texts != {patch.file.name: patch.data for patch in patches}:
        stale = sorted({patch.file.name for patch in patches if texts.get(patch.file.name) != patch.data})
        raise Failure(
            f"{module.folder / stale[0]} differs from what export writes: import and export {module.name} again."
        )
    if record != module.recorded():
        raise Failure(
            f"{module.pinset.file} records other trees of {module.name} than its patches produce ({record.tree} -> "
            f"{record.patched_tree}): import and export {module.name} again."
        )
