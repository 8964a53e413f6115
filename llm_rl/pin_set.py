# SPDX-License-Identifier: Apache-2.0
"""What differs between pin sets for a recipe: versions, tree ids and variables in patches/NAME/pins.toml, and the needs
of its verl release in llm_rl/verl_releases:

v0_9_1.toml  key map (llm_rl/key_map.py), and plain values, over those of common.toml
v0_9_1.py    three functions of a llm_rl.recipe.Recipe:
             check(recipe)                   raises ValueError, one sentence, for a recipe that this verl cannot run
             derive(recipe) -> dict          settings that follow from several keys, by verl's names; a leading + adds a
                                             key that verl's configuration does not have
             entry_point(recipe, verl) -> llm_rl.entry_point.EntryPoint; verl: folder of the installed package; raises
                                             ValueError with one sentence if verl's trainer is missing
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Any

from llm_rl.entry_point import EntryPoint
from llm_rl.errors import UserError
from llm_rl.key_map import KeyMap
from llm_rl.recipe import ROOT, Recipe, leaves

PATCHES = ROOT / "patches"
RELEASES = ROOT / "llm_rl" / "verl_releases"


class RecipePins:
    """A pin set as recipes use it.

    name: name of its folder; pins: pins.toml; verl: name and version of its verl; keys: key map; environment: variables
    of all processes; collective_timeout: seconds that a collective of an NPU waits within a step at most; speculation:
    prefix of verl's keys for the engine's speculative_config; speculation_on: other settings for speculation.
    """

    def __init__(self, name: str) -> None:
        if not (known := names()):
            raise UserError(f"{ROOT} has no patches: run llm_rl in a checkout of the repository")
        if name not in known:
            raise UserError(f"pin_set must be one of {', '.join(known)}, got {name!r}")
        self.name = name
        self.pins = tomllib.loads((PATCHES / name / "pins.toml").read_text())
        self.environment: dict[str, str] = self.pins.get("environment", {})
        version = self.pins["module"]["verl"]["version"]
        self.verl = f"verl {version}"
        release = "v" + version.replace(".", "_")
        self._functions: Any = importlib.import_module(f"llm_rl.verl_releases.{release}")
        path = RELEASES / f"{release}.toml"
        facts = read_facts(path)
        self.collective_timeout: int = facts["collective_timeout_s"]
        self.speculation: str = facts["speculation"]
        self.speculation_on: dict[str, Any] = facts.get("speculation_on", {})
        self.keys = KeyMap(path, facts)

    @classmethod
    @functools.cache
    def of(cls, name: str) -> RecipePins:
        """The pin set of this name, read once."""
        return cls(name)

    def check(self, recipe: Recipe) -> None:
        """Raise UserError for a recipe that this pin set cannot run."""
        try:
            self._functions.check(recipe)
        except ValueError as e:
            raise UserError(str(e)) from None
        writes = recipe.checkpoints.every and recipe.train.backend == "megatron"  # FSDP ignores async_save
        for name, value in leaves(recipe.verl):
            if key := self.keys.recipe_key(name.replace("+", "")):
                raise UserError(f"verl.{name} is set by {key}: use that")
            if writes and name.endswith(".checkpoint.async_save") and value:
                raise UserError(
                    f"verl.{name}: {self.verl} never finishes a checkpoint that it writes in the background, so no "
                    "run can resume from it: leave the key out"
                )

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """verl's settings, by verl's names, that correspond to the recipe's keys or are derived from them."""
        return self.keys.settings(recipe) | self._functions.derive(recipe)

    def entry_point(self, recipe: Recipe) -> EntryPoint:
        """The entry point of verl. Raises UserError unless this environment has the pin set's verl."""
        try:
            installed = f"verl {importlib.metadata.version('verl')}"
        except importlib.metadata.PackageNotFoundError:
            installed = "no verl"
        if installed != self.verl:
            raise UserError(
                f"{sys.prefix} has {installed}, but pin set {self.name} needs {self.verl}: set PIN={self.name} or "
                "PYTHON for the script, to use the pin set's environment"
            )
        try:
            return self._functions.entry_point(recipe, self.verl_package())
        except ValueError as e:
            raise UserError(str(e)) from None

    @staticmethod
    def verl_package() -> Path:
        """The folder of the installed verl, without importing it."""
        spec = importlib.util.find_spec("verl")
        assert spec and spec.submodule_search_locations
        return Path(spec.submodule_search_locations[0])


def read_facts(path: Path) -> dict[str, Any]:
    """The content of a release's .toml over that of common.toml next to it."""

    def over(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        return common | {k: over(common.get(k, {}), v) if isinstance(v, dict) else v for k, v in own.items()}

    return over(*(tomllib.loads(file.read_text()) for file in (path.with_name("common.toml"), path)))


def names() -> list[str]:
    """Names of the pin sets."""
    return sorted(path.parent.name for path in PATCHES.glob("*/pins.toml"))
