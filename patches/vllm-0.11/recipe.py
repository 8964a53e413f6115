# SPDX-License-Identifier: Apache-2.0
"""How verl 0.6.1 runs a recipe, as far as recipe.toml cannot say it. llm_rl/pin_set.py describes the functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llm_rl.pin_set import EntryPoint, PinSet
from llm_rl.recipe import Recipe


def check(recipe: Recipe) -> None:
    if recipe.cluster.device == "cpu":
        raise ValueError(
            f"pin set {recipe.pin_set} has no recipe on a CPU: its verl 0.6.1 has no CPU platform; choose another pin_set"
        )
    if max(recipe.rollout.data_parallel_size, recipe.rollout.expert_parallel_size) > 1:
        raise ValueError(
            f"pin set {recipe.pin_set} cannot run this recipe: the rollout of its verl 0.6.1 does not spread experts over "
            f"data-parallel ranks (rollout.expert_parallel_size is {recipe.rollout.expert_parallel_size}); choose another "
            "pin_set"
        )


def derive(recipe: Recipe) -> dict[str, Any]:
    settings: dict[str, Any] = {"reward_model.reward_manager": "dapo"}
    if recipe.train.backend != "megatron":
        return settings | {"actor_rollout_ref.model.enable_gradient_checkpointing": recipe.train.recompute}
    megatron = "actor_rollout_ref.actor.megatron."
    settings |= {megatron + "grad_offload": recipe.train.param_offload, megatron + "use_mbridge": True}
    settings["critic.strategy"] = "megatron"
    if recipe.cluster.device == "npu":  # MindSpeed reads its settings from the transformer's configuration
        transformer = f"+{megatron}override_transformer_config."
        settings[transformer + "use_flash_attn"] = True
        if recipe.train.context_parallel > 1:
            settings[transformer + "context_parallel_size"] = recipe.train.context_parallel
    return settings


def entry_point(recipe: Recipe, pin_set: PinSet) -> EntryPoint:
    """recipe/dapo in a checkout of verl: it is in verl's git tag and in no package. VERL_CHECKOUT names the checkout."""
    named = os.environ.get("VERL_CHECKOUT")
    folder = Path(named) if named else pin_set.verl_package().parent
    defaults = folder / "verl" / "trainer" / "config"
    if not (folder / "recipe" / "dapo" / "main_dapo.py").is_file() or not defaults.is_dir():
        raise ValueError(
            f"pin set {pin_set.name} trains by recipe/dapo, which is in verl's git tag alone and not in {folder}: clone "
            f"verl at {pin_set.pins['module']['verl']['tag']}, patch it (patches/patchset apply --module verl "
            f"{pin_set.name} --to FOLDER) and set VERL_CHECKOUT=FOLDER"
        )
    folder = folder.resolve()
    name = "dapo_megatron_trainer" if recipe.train.backend == "megatron" else "dapo_trainer"
    return EntryPoint(
        module="recipe.dapo.main_dapo",
        arguments=("--config-name", name),
        folder=folder,
        config_folder=folder / "recipe" / "dapo" / "config",
        config_name=name,
        search_path=folder / "verl" / "trainer" / "config",
    )
