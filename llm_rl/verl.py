# SPDX-License-Identifier: Apache-2.0
"""The verl that a pin set trains with: where it is, how it is started, and whether it takes a recipe's settings."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tomllib
from pathlib import Path

from llm_rl.config import ROOT, ConfigError
from llm_rl.schema import OLD, VERL


def pins(pin_set: str) -> dict:
    """patches/<pin_set>/pins.toml; ConfigError where there is no such pin set."""
    path = ROOT / "patches" / pin_set / "pins.toml"
    if not path.is_file():
        raise ConfigError(f"there is no pin set {pin_set}: {path} is missing")
    with path.open("rb") as f:
        return tomllib.load(f)


def checkout(pin_set: str) -> Path:
    """The folder that verl is started in: this repository, or for vllm-0.11 the checkout of verl's tag; ConfigError.

    verl 0.6.1 trains DAPO by recipe/dapo, which is in its git tag and in no package.
    """
    version = pins(pin_set)["module"]["verl"]["version"]
    try:
        installed = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != version:
        raise ConfigError(
            f"{sys.prefix} has verl {installed}, and pin set {pin_set} is verl {version}: set PIN={pin_set} or PYTHON "
            "for the script, to start the pin set's own environment"
        )
    if pin_set != OLD:
        return ROOT
    places = [Path(os.environ[name]) for name in ("VERL_CHECKOUT",) if os.environ.get(name)]
    places += [_package().parent] if not places else []
    for place in places:
        if (place / "recipe" / "dapo" / "main_dapo.py").is_file() and (place / "verl" / "trainer" / "config").is_dir():
            return place.resolve()
    raise ConfigError(
        f"pin set {pin_set} trains by recipe/dapo, which is in verl's git tag alone and not in {places[0]}: clone verl at "
        f"{pins(pin_set)['module']['verl']['tag']}, patch it (patches/patchset apply --module verl {pin_set} --to FOLDER) "
        "and set VERL_CHECKOUT=FOLDER"
    )


def command(pin_set: str, backend: str, overrides: list[str], run_dir: Path) -> list[str]:
    """The command that trains, to be run in `checkout`."""
    module, name = "verl.trainer.main_ppo", []
    if pin_set == OLD:
        module, name = "recipe.dapo.main_dapo", ["--config-name", _old_name(backend)]
    own = [f"hydra.run.dir='{run_dir / 'hydra'}'"]
    return [sys.executable, "-m", module, *name, *overrides, *own]


def compose(pin_set: str, backend: str, overrides: list[str], folder: Path) -> None:
    """Compose verl's own configuration with the overrides, as verl does at its start; ConfigError for what it rejects."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if pin_set == OLD:
        folder, name = folder / "recipe" / "dapo" / "config", _old_name(backend)
        overrides = [*overrides, f"hydra.searchpath=['file://{folder.parents[2] / 'verl' / 'trainer' / 'config'}']"]
    else:
        folder, name = _package() / "trainer" / "config", "ppo_trainer"
    try:
        with initialize_config_dir(str(folder), version_base=None):
            compose(name, overrides)
    except (HydraException, OmegaConfBaseException) as e:
        why = e.__cause__ or e
        said = " ".join(line.strip() for line in [*str(e).splitlines()[:2], *str(why).splitlines()[:1]])
        raise ConfigError(f"{VERL[pin_set]} rejects the recipe: {said}") from None


def _package() -> Path:
    """The installed verl, found without importing it."""
    return Path(importlib.util.find_spec("verl").submodule_search_locations[0])


def _old_name(backend: str) -> str:
    return "dapo_megatron_trainer" if backend == "megatron" else "dapo_trainer"
