# SPDX-License-Identifier: Apache-2.0
"""Recipe configurations: a child file over its base, overrides from the command line, verl's command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from sam_core.options import VERIFY, Options

ROUTER = Path(__file__).resolve().parent / "router.yaml"
KEYS = ("name", "pin_set", "seed", "steps", "model", "sam", "sam_options", "env", "verl")


class ConfigError(ValueError):
    """One sentence: what is wrong in a recipe's configuration, where, and what to do."""


def load(path: Path, overrides: list[str]) -> DictConfig:
    """Merge `path` over the chain of its bases, then `overrides` (key=value); raise ConfigError."""
    config = _merge(path)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"override {override!r} is not of the form key=value")
        try:
            OmegaConf.update(config, key, OmegaConf.create({"value": yaml.safe_load(value)}).value, force_add=True)
        except (OmegaConfBaseException, yaml.YAMLError, AttributeError, TypeError, ValueError) as e:
            raise ConfigError(f"override {override!r} cannot be used: {str(e).splitlines()[0]}") from None
    _validate(config, path)
    return config


def options(config: DictConfig) -> Options:
    """The options of the SAM proposer; raise ValueError with one sentence."""
    sam = OmegaConf.to_container(config.sam_options, resolve=True)
    return Options.from_engine(sam.pop("k"), sam, verify=VERIFY)


def verl_overrides(config: DictConfig, run_dir: Path) -> list[str]:
    """Command-line overrides for verl: the recipe's, then those that follow from this run."""
    merged = OmegaConf.merge(
        config.verl,
        {
            "data": {
                "train_files": f"{config.model}/train.parquet",
                "val_files": f"{config.model}/test.parquet",
                "seed": config.seed,
            },
            "actor_rollout_ref": {
                "model": {"path": config.model},
                "rollout": {"seed": config.seed, "router_config_path": str(ROUTER)},
            },
            "trainer": {
                "total_training_steps": config.steps,
                "project_name": "sam-rl",
                "experiment_name": config.name,
                "default_local_dir": f"{run_dir}/checkpoints",
            },
        },
    )
    lines = _flatten(OmegaConf.to_container(merged, resolve=True))
    lines += [f"hydra.run.dir={_hydra(str(run_dir / 'hydra'))}"]
    vllm = "actor_rollout_ref.rollout.engine_kwargs.vllm."
    if config.sam == "off":
        if options(config).verify != Options.verify:
            lines += _flatten({"+additional_config": {"sam_verify": options(config).verify}}, vllm)
    else:
        sam = OmegaConf.to_container(config.sam_options, resolve=True)
        speculative = {"method": "sam", "num_speculative_tokens": sam.pop("k"), "sam": {**sam, "switch": config.sam}}
        lines += _flatten({"+speculative_config": speculative}, vllm)
    return lines


def _merge(path: Path) -> DictConfig:
    if not path.is_file():
        raise ConfigError(f"there is no recipe configuration {path}")
    try:
        config = OmegaConf.load(path)
    except Exception as e:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from None
    base = config.pop("base", None)
    return OmegaConf.merge(_merge(path.parent / base), config) if base else config


def _validate(config: DictConfig, path: Path) -> None:
    for key in config:
        if key not in KEYS:
            raise ConfigError(f"unknown key {key!r} in {path} or its overrides; known: {', '.join(KEYS)}")
    for key in KEYS:
        if config.get(key) is None:
            raise ConfigError(f"{path} does not set {key!r}")
    if config.sam is False:  # YAML reads a bare `off` as false
        config.sam = "off"
    if config.sam == "auto":
        raise ConfigError("sam=auto (a budget for every request) is not part of this version: use sam=batch or sam=off")
    if config.sam not in ("off", "batch"):
        raise ConfigError(f"sam must be off or batch, got {config.sam!r}")
    for key, least in (("seed", 0), ("steps", 1)):
        if type(config[key]) is not int or config[key] < least:
            raise ConfigError(f"{key} must be a whole number of at least {least}, got {config[key]!r}")
    for key in ("sam_options", "env", "verl"):
        if not isinstance(config[key], DictConfig):
            raise ConfigError(f"{key} must be a mapping, got {config[key]!r}")
    if "k" not in config.sam_options:
        raise ConfigError("sam_options does not set k, the tokens a draft")
    if "switch" in config.sam_options:
        raise ConfigError("the switch is chosen by sam=off or sam=batch, not in sam_options")
    try:
        options(config)
    except ValueError as e:
        raise ConfigError(f"sam_options: {e}") from None


def _flatten(node: dict[str, Any], prefix: str = "") -> list[str]:
    """Hydra overrides of a nested mapping; a + on any key of a path marks the whole path as an addition."""
    lines = []
    for key, value in node.items():
        if isinstance(value, dict) and value:
            lines += _flatten(value, f"{prefix}{key}.")
        else:
            path = prefix + key
            lines.append(f"{'+' if '+' in path else ''}{path.replace('+', '')}={_hydra(value)}")
    return lines


def _hydra(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_hydra(v) for v in value) + "]"
    text = str(value)
    retyped = text.lower() in ("null", "true", "false", "yes", "no", "on", "off", "inf", "nan")
    if isinstance(value, str) and (retyped or not re.fullmatch(r"[A-Za-z_./][\w./:-]*", text)):
        return "'" + text.replace("'", "\\'") + "'"
    return text
