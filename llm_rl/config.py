# SPDX-License-Identifier: Apache-2.0
"""Read a recipe: a YAML file merged over its chain of bases, then overrides from the command line.

A file states only what differs from its base. With profile=recommended, its keys under `recommended` override the rest.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_rl.errors import UserError
from llm_rl.pin_set import RecipePins
from llm_rl.recipe import Recipe, Section, section_of, unknown, validate


def load(path: Path, overrides: list[str]) -> Recipe:
    """The recipe in `path` with `overrides` (key=value), checked for its pin set. Raises UserError."""
    profiles = [value for key, _, value in (override.partition("=") for override in overrides) if key == "profile"]
    config = _merge(path, recommended=bool(profiles) and profiles[-1].strip("\"' ") == "recommended")
    has_profiles = config.profile is not None
    for override in overrides:
        if "=" not in override:
            raise UserError(f"override {override!r} is not of the form key=value")
        alone = OmegaConf.create({})
        try:
            for target in (alone, config):
                target.merge_with_dotlist([override])  # parses numbers as in files: 1e-6 is one
        except (OmegaConfBaseException, yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as e:
            problem = getattr(e, "problem", None) or str(e).splitlines()[0]  # YAML's, else the first line
            raise UserError(f"override {override!r} cannot be used: {problem}") from None
        _check_keys(alone, f"override {override!r}")
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as e:
        raise UserError(f"{path}: {str(e).splitlines()[0]}") from None
    recipe = validate(values, f"{path} or its overrides")
    if recipe.profile and not has_profiles:
        raise UserError(f"{path} has no profiles: leave profile={recipe.profile} out")
    RecipePins.of(recipe.pin_set).check(recipe)
    return recipe


def _merge(path: Path, recommended: bool = False) -> DictConfig:
    """Merge a file over its bases; each file's `recommended` keys are merged directly after its others."""
    config = _read(path)
    base, ours = config.pop("base", None), config.pop("recommended", OmegaConf.create({}))
    if not isinstance(ours, DictConfig):
        raise UserError(f"{path}: recommended must be a mapping of keys")
    _check_keys(config, str(path))
    _check_keys(ours, f"{path}, recommended")
    merged = OmegaConf.merge(_merge(path.parent / base, recommended), config) if base else config
    return OmegaConf.merge(merged, ours) if recommended else merged


def _read(path: Path) -> DictConfig:
    if not path.is_file():
        raise UserError(f"there is no recipe configuration {path}")
    try:
        config = OmegaConf.load(path)
    except Exception as e:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from None
    if not isinstance(config, DictConfig):
        raise UserError(f"{path} must be a mapping of keys")
    return config


def _check_keys(config: DictConfig, origin: str, section: type[Section] = Recipe, prefix: str = "") -> None:
    """Raise UserError for the first unknown key. origin: where the keys come from."""
    for name, value in config.items_ex(resolve=False):
        key = f"{prefix}{name}"
        if name not in section.model_fields:
            raise UserError(f"{unknown(key)} (in {origin})")
        if inner := section_of(section.model_fields[name]):
            if not isinstance(value, DictConfig):
                raise UserError(f"{key} is a group of keys, not a key (in {origin})")
            _check_keys(value, origin, inner, f"{key}.")
