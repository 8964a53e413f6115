# SPDX-License-Identifier: Apache-2.0
"""Translate the keys of a recipe to verl's according to a key map, llm_rl/verl_releases/*.toml:

keys             verl's key, or a list of keys, for each key of a recipe; `a.*` stands for all keys of group a that are
                 not listed. A leading + adds a key that verl's configuration does not have
fsdp, megatron   more keys, if `train.backend` is FSDP or Megatron
constants        values that every recipe has, by verl's key; also fsdp.constants, megatron.constants
derived          keys of a recipe that the release's Python file turns into settings
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

from llm_rl.errors import UserError
from llm_rl.recipe import KEYS, MAPPED, Recipe, leaves


class KeyMap:
    """The key map of a release of verl.

    Args:
        path: path of the file, for error messages.
        facts: content of the file.

    Raises:
        UserError: unless the map has exactly the keys in MAPPED.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        derived = set(facts.get("derived", ()))
        self._keys, self._constants = {}, {}
        for backend in ("fsdp", "megatron"):
            own = dict(facts.get(backend, {}))
            self._constants[backend] = facts.get("constants", {}) | own.pop("constants", {})
            self._keys[backend] = _expand(dict(leaves(facts["keys"])) | dict(leaves(own)), derived)
        mapped = {*self._keys["fsdp"], *self._keys["megatron"], *derived}
        if wrong := mapped ^ MAPPED:
            problem = "lacks" if (missing := wrong & MAPPED) else "names"
            raise UserError(
                f"{path} {problem} {', '.join(sorted(missing or wrong))}: it must name, under keys, fsdp, megatron or "
                "derived, exactly the keys of a recipe that set one of verl's"
            )

    def recipe_key(self, verl_key: str) -> str | None:
        """The key of a recipe that sets this key of verl with any backend, or None."""
        pairs = (pair for key_map in self._keys.values() for pair in key_map.items())
        return next((name for name, mapped in pairs if verl_key in {key.lstrip("+") for key in mapped}), None)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Settings by verl's keys; a null key of the recipe sets nothing."""
        backend = "megatron" if recipe.train.backend == "megatron" else "fsdp"  # fsdp2 uses the tables of fsdp
        mapped = self._keys[backend]
        values = {name: attrgetter(name)(recipe) for name in KEYS if name in mapped}
        settings = {key: value for name, value in values.items() if value is not None for key in mapped[name]}
        return settings | self._constants[backend]


def _expand(written: dict[str, str | list[str]], derived: set[str]) -> dict[str, list[str]]:
    """verl's keys for each key of a recipe, with `a.*` expanded."""
    groups = {name.removesuffix("*"): written.pop(name) for name in list(written) if name.endswith(".*")}
    for name in MAPPED - derived - written.keys():
        group, dot, last = name.rpartition(".")
        if isinstance(verl_group := groups.get(group + dot), str):
            written[name] = verl_group.removesuffix("*") + last
    return {name: [keys] if isinstance(keys, str) else keys for name, keys in written.items()}
