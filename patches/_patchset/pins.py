# SPDX-License-Identifier: Apache-2.0
"""A pin set: the folder patches/<name> with its pins.toml and one folder of patches per module."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from .git import Failure

PATCHES = Path(__file__).resolve().parent.parent
REPO = PATCHES.parent

MARKER = "# ==== written by `patchset export`; edit only above this line ====\n"


@dataclass
class Record:
    """Tree ids of a module's source distribution before and after its patches, and blob ids of each touched file before
    and after, "" if there is no file."""

    tree: str
    patched_tree: str
    blobs: dict[str, tuple[str, str]]


@dataclass
class Module:
    """One `[module.<name>]` of pins.toml."""

    pinset: "PinSet"
    name: str
    version: str
    dists: dict[str, set[str]]  # versions by name of the distributions that may provide an installed copy
    sdist_sha256: str
    record: Record | None

    @property
    def folder(self) -> Path:
        """Folder of its patches."""
        return self.pinset.folder / self.name

    def recorded(self) -> Record:
        """The record; raises Failure if there is none."""
        if self.record is None:
            raise Failure(
                f"{self.pinset.file} has no record of {self.name}: run `patchset import` and `patchset export` on it."
            )
        return self.record


def released(file: Path, dist: str, version: str, sdist_sha256: str) -> Module:
    """A release without patches, pinned by `file`."""
    pinned_by = cast("PinSet", SimpleNamespace(file=file))
    return Module(pinned_by, dist, version, {dist: {version}}, sdist_sha256, None)


class PinSet:
    """A pin set read from its folder; raises Failure if pins.toml is missing or invalid."""

    def __init__(self, name: str):
        data = read(name)
        self.name = name
        self.folder = PATCHES / name
        self.file = self.folder / "pins.toml"
        self.modules = {module: self._module(module, table) for module, table in data.get("module", {}).items()}

    def _module(self, name: str, table: dict[str, Any]) -> Module:
        where = f"{self.file}: [module.{name}]"
        for key in ("version", "sdist_sha256"):
            if not isinstance(table.get(key), str):
                raise Failure(f"{where} needs {key}, a string.")
        if not re.fullmatch("[0-9a-f]{64}", table["sdist_sha256"]):
            raise Failure(f"{where} sdist_sha256 must be 64 lower-case hex digits.")
        dists = table.get("dists")
        if not isinstance(dists, list) or not dists or not all(isinstance(d, str) for d in dists):
            raise Failure(f"{where} needs dists, a list of distribution names, the source distribution's first.")
        versions: dict[str, set[str]] = {}
        for dist, _, version in (dist.partition("==") for dist in dists):
            versions.setdefault(dist, set()).add(version or table["version"])
        record = None
        if "recorded" in table:
            try:
                recorded = table["recorded"]
                blobs = {path: (before, after) for path, (before, after) in recorded["blobs"].items()}
                record = Record(recorded["tree"], recorded["patched_tree"], blobs)
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise Failure(
                    f"{self.file}: the generated record of {name} is damaged; export {name} again."
                ) from error
        return Module(self, name, table["version"], versions, table["sdist_sha256"], record)

    def module(self, name: str) -> Module:
        """The module of this name; raises Failure if the pin set has none."""
        if name not in self.modules:
            raise Failure(f"The pin set {self.name} has no module {name!r}: it has {', '.join(self.modules)}.")
        return self.modules[name]

    def text(self) -> str:
        """pins.toml with an unchanged hand-written part and a new generated part."""
        head = self.file.read_text().partition(MARKER)[0]
        lines = [MARKER]
        for module in self.modules.values():
            if module.record is None:
                continue
            lines.append(f"\n[module.{module.name}.recorded]\n")
            lines.append(f'tree = "{module.record.tree}"\npatched_tree = "{module.record.patched_tree}"\n')
            lines.append(f"\n[module.{module.name}.recorded.blobs]\n")
            for path, (before, after) in sorted(module.record.blobs.items()):
                lines.append(f'"{path}" = ["{before}", "{after}"]\n')
        return head.rstrip("\n") + "\n\n" + "".join(lines)


def read(name: str) -> dict[str, Any]:
    """The content of patches/NAME/pins.toml; raises Failure if it is missing, invalid TOML or has another name."""
    file = PATCHES / name / "pins.toml"
    if name not in names():
        raise Failure(f"There is no pin set {name!r}: patches/ has {', '.join(names()) or 'none'}.")
    try:
        data = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"{file} is not valid TOML: {error}.") from error
    if data.get("name") != name:
        raise Failure(f"{file}: name must be {name!r}, the name of its folder, not {data.get('name')!r}.")
    return data


def value(name: str, key: str) -> Any:
    """The value of a key such as runtime.cpu.torch in patches/NAME/pins.toml; raises Failure if there is none."""
    found: Any = read(name)
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            raise Failure(f"patches/{name}/pins.toml has no {key}.")
        found = found[part]
    return found


def plural(number: int, noun: str) -> str:
    """`1 file`, `2 files`, `3 patches`."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("ch") else "s")


def names() -> list[str]:
    """All pin sets, by name."""
    return sorted(file.parent.name for file in PATCHES.glob("*/pins.toml"))
