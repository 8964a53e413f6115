# SPDX-License-Identifier: Apache-2.0
"""Filters that read what the repository records, so that no version is written a second time."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError


def pin_set(repository: str, name: str) -> dict[str, Any]:
    """The content of patches/NAME/pins.toml."""
    path = Path(str(repository), "patches", str(name), "pins.toml")
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise AnsibleFilterError(f"pin_set {name!r}: {path} cannot be read ({error})") from None


def recipe_needs(repository: str, name: str, section: str = "cluster") -> dict[str, Any]:
    """A section of the recipe NAME, merged over that of its bases; may be empty."""
    folder = Path(str(repository), "llm_rl", "qwen3")
    needs: dict[str, Any] = {}
    file: str | None = f"{name}.yaml"
    while file:
        config = yaml.safe_load((folder / file).read_text()) or {}
        needs = {**(config.get(section) or {}), **needs}
        file = config.get("base")
    return needs


def lasting(request: Mapping, repository: str) -> dict[str, Any]:
    """What a run was asked for without the overrides that may be others when it goes on: those of the launcher's MAY_CHANGE."""
    tree = ast.parse(Path(str(repository), "llm_rl", "launch.py").read_text())
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    changing = ast.literal_eval(assigned["MAY_CHANGE"])
    overrides = [setting for setting in request["overrides"] if re.split(r"[.=\[]", setting)[0] not in changing]
    return {**request, "overrides": overrides}


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"pin_set": pin_set, "recipe_needs": recipe_needs, "lasting": lasting}
