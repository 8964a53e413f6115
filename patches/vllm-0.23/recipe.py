# SPDX-License-Identifier: Apache-2.0
"""How verl 0.9.1 runs a recipe, as far as recipe.toml cannot say it. llm_rl/pin_set.py describes the functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sam_core.engines.verl import ROUTER_CONFIG

from llm_rl import layout
from llm_rl.pin_set import EntryPoint, PinSet
from llm_rl.recipe import Recipe

WEIGHT_BUFFER = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
WEIGHT_BUFFER_DEFAULT = 2048


def check(recipe: Recipe) -> None:
    data = recipe.data
    if data.gen_batch_size % data.train_batch_size:
        raise ValueError(
            f"data.gen_batch_size {data.gen_batch_size} is no multiple of data.train_batch_size {data.train_batch_size}, "
            "in which verl 0.9.1 counts prompts in flight"
        )


def derive(recipe: Recipe) -> dict[str, Any]:
    settings = {
        "actor_rollout_ref.model.enable_gradient_checkpointing": recipe.train.recompute,
        "actor_rollout_ref.rollout.seed": recipe.seed,
        "actor_rollout_ref.rollout.router_config_path": str(ROUTER_CONFIG),
        "algorithm.filter_groups.max_inflight_gen_batches": recipe.data.gen_batch_size // recipe.data.train_batch_size,
        "reward.custom_reward_function.path": "pkg://llm_rl.rewards",
        "reward.custom_reward_function.name": "compute_score",
        "reward.reward_manager.name": "dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.log": False,
        "+reward.reward_kwargs.max_resp_len": recipe.data.max_response_length,
    }
    if recipe.train.backend == "megatron":
        # mbridge, as in verl's own images for NPUs; by default verl takes Megatron-Bridge, which they lack.
        return settings | {"model_engine": "megatron", "actor_rollout_ref.actor.megatron.vanilla_mbridge": True}
    # verl sends whole float32 weights to the engines through a buffer, and ends where one does not fit
    # (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:140).
    shape = layout.shape(Path(recipe.model.path))
    largest = -(-4 * shape.vocabulary * shape.hidden >> 20) if shape else 0
    return settings | ({WEIGHT_BUFFER: largest} if largest > WEIGHT_BUFFER_DEFAULT else {})


def entry_point(recipe: Recipe, pin_set: PinSet) -> EntryPoint:
    return EntryPoint("verl.trainer.main_ppo", pin_set.verl_package() / "trainer" / "config", "ppo_trainer")
