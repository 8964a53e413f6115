# SPDX-License-Identifier: Apache-2.0
"""How verl 0.6.1 runs a recipe, beyond v0_6_1.toml. llm_rl/pin_set.py describes the functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llm_rl.entry_point import EntryPoint
from llm_rl.recipe import Recipe


def check(recipe: Recipe) -> None:
    if recipe.cluster.device == "cpu":
        raise ValueError(
            f"pin set {recipe.pin_set} cannot run recipes on a CPU: its verl 0.6.1 has no CPU platform; choose another "
            "pin_set"
        )
    if recipe.cluster.device == "cuda" and recipe.sam != "off":
        raise ValueError(f"pin set {recipe.pin_set} only drafts on Ascend: choose another for a GPU, or sam=off")
    if recipe.trainer.mode != "sync":
        raise ValueError(
            f"pin set {recipe.pin_set} only runs trainer.mode sync: choose another pin_set for {recipe.trainer.mode}"
        )
    if recipe.rollout.max_num_batched_tokens < recipe.sequence_length:
        raise ValueError(
            f"rollout.max_num_batched_tokens {recipe.rollout.max_num_batched_tokens} is below the maximum length of "
            f"prompt and answer, {recipe.sequence_length} tokens, which verl 0.6.1 refuses with chunked prefill"
        )


def derive(recipe: Recipe) -> dict[str, Any]:
    """Parallel sizes of the rollout's engines, and MindSpeed's settings in the transformer's configuration.

    verl's keys for data and expert parallelism have no effect in its synchronous rollout (patch verl/0009). vLLM
    accepts both as arguments of each rank's engine and reads the rank from RANK, which verl's workers set
    (vllm-project/vllm#24899).
    """
    prefix, rollout = "actor_rollout_ref.rollout.", recipe.rollout
    settings: dict[str, Any] = {prefix + "data_parallel_size": 1, prefix + "expert_parallel_size": 1}
    if rollout.data_parallel_size > 1:
        settings[f"+{prefix}engine_kwargs.vllm.data_parallel_size"] = rollout.data_parallel_size
    if rollout.expert_parallel_size > 1:
        settings[f"+{prefix}engine_kwargs.vllm.enable_expert_parallel"] = True
    if recipe.train.backend == "megatron" and recipe.cluster.device == "npu":
        prefix = "+actor_rollout_ref.actor.megatron.override_transformer_config."
        settings[prefix + "use_flash_attn"] = True
        if recipe.train.context_parallel > 1:
            settings[prefix + "context_parallel_size"] = recipe.train.context_parallel
    return settings


def entry_point(recipe: Recipe, verl: Path) -> EntryPoint:
    """recipe/dapo in the checkout of verl at VERL_CHECKOUT; verl's git tag has it, the package does not."""
    named = os.environ.get("VERL_CHECKOUT")
    folder = Path(named) if named else verl.parent
    defaults = folder / "verl" / "trainer" / "config"
    if not (folder / "recipe" / "dapo" / "main_dapo.py").is_file() or not defaults.is_dir():
        raise ValueError(
            f"pin set {recipe.pin_set} trains with recipe/dapo, which is only in verl's git tag and not in {folder}: "
            f"clone verl at v0.6.1, patch it (patches/patchset apply --module verl {recipe.pin_set} --to FOLDER) "
            "and set VERL_CHECKOUT=FOLDER"
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
