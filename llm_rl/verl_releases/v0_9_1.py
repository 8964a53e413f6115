# SPDX-License-Identifier: Apache-2.0
"""How verl 0.9.1 runs a recipe, beyond v0_9_1.toml. llm_rl/pin_set.py describes the functions."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

from sam_core.engines.verl import ROUTER_CONFIG

from llm_rl.entry_point import EntryPoint
from llm_rl.recipe import Recipe
from llm_rl.shape import embedding

WEIGHT_BUFFER = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
WEIGHT_BUFFER_DEFAULT = 2048
ENTRY_POINTS = {
    "one_step_off": ("one_step_off_policy", "main_ppo", "one_step_off_ppo_trainer"),
    "fully_async": ("fully_async_policy", "fully_async_main", "fully_async_ppo_trainer"),
}
"""Package of verl.experimental, its module, and its configuration, by trainer mode."""
PLUGINS = {"sam", "sam_rl"}
"""Entry points for verl that sam_core and llm_rl provide."""


def check(recipe: Recipe) -> None:
    data = recipe.data
    if data.gen_batch_size % data.train_batch_size:
        raise ValueError(
            f"data.gen_batch_size {data.gen_batch_size} is not a multiple of data.train_batch_size "
            f"{data.train_batch_size}, the unit in which verl 0.9.1 counts prompts in flight"
        )
    if data.train_batch_size % recipe.train.ppo_mini_batch_size and recipe.trainer.mode in (
        "separate_async",
        "fully_async",
    ):
        raise ValueError(
            f"data.train_batch_size {data.train_batch_size} is not a multiple of train.ppo_mini_batch_size "
            f"{recipe.train.ppo_mini_batch_size}, after which trainer.mode {recipe.trainer.mode} requests new prompts"
        )
    if recipe.trainer.mode in ENTRY_POINTS and recipe.algorithm.filter_groups:
        raise ValueError(
            f"trainer.mode {recipe.trainer.mode} of verl 0.9.1 has no dynamic sampling: set "
            "algorithm.filter_groups=false"
        )


def derive(recipe: Recipe) -> dict[str, Any]:
    settings = {
        "actor_rollout_ref.rollout.router_config_path": str(ROUTER_CONFIG),
        "algorithm.filter_groups.max_inflight_gen_batches": recipe.data.gen_batch_size // recipe.data.train_batch_size,
        **_mode(recipe),
    }
    if recipe.train.backend == "megatron":
        return settings
    # verl sends whole float32 weights to the engines through a buffer, and fails if one does not fit
    # (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:140).
    largest = -(-4 * embedding(Path(recipe.model.path)) >> 20)
    return settings | ({WEIGHT_BUFFER: largest} if largest > WEIGHT_BUFFER_DEFAULT else {})


def _mode(recipe: Recipe) -> dict[str, Any]:
    """Settings that choose the trainer and, if other hosts generate, configure these hosts and the weight transfer."""
    mode, cluster, rollout = recipe.trainer.mode, recipe.cluster, "actor_rollout_ref.rollout."
    settings: dict[str, Any] = {} if mode in ENTRY_POINTS else {"trainer.v1.trainer_mode": mode}
    if not recipe.separate:
        return settings
    settings |= {
        "actor_rollout_ref.hybrid_engine": False,
        rollout + "nnodes": cluster.rollout_nodes,
        rollout + "n_gpus_per_node": cluster.dies_per_node,
        rollout + "checkpoint_engine.backend": "store" if cluster.device == "cpu" else "nccl",
    }
    if cluster.device == "cpu":
        settings[rollout + "checkpoint_engine.custom_backend_module"] = "llm_rl.cpu_weights"
    mini_batches = recipe.data.train_batch_size // recipe.train.ppo_mini_batch_size
    if mode == "separate_async":
        return settings | {"trainer.v1.separate_async.parameter_sync_step": mini_batches}
    settings |= {"rollout.nnodes": cluster.rollout_nodes, "rollout.n_gpus_per_node": cluster.dies_per_node}
    if mode == "fully_async":
        settings |= {
            "data.train_batch_size": 0,
            "rollout.total_rollout_steps": recipe.steps * recipe.data.train_batch_size,
            "async_training.trigger_parameter_sync_step": mini_batches,
        }
    return settings


def entry_point(recipe: Recipe, verl: Path) -> EntryPoint:
    _check_verl(verl)
    config = verl / "trainer" / "config"
    if recipe.trainer.mode not in ENTRY_POINTS:
        return EntryPoint("verl.trainer.main_ppo", config, "ppo_trainer")
    package, module, name = ENTRY_POINTS[recipe.trainer.mode]
    return EntryPoint(
        f"verl.experimental.{package}.{module}",
        verl / "experimental" / package / "config",
        name,
        ("hydra.searchpath=['pkg://verl.trainer.config']",),
        search_path=config,
    )


def _check_verl(verl: Path) -> None:
    """Raise ValueError unless the plugins will work with this verl."""
    try:
        from sam_core.engines.verl import hooks

        from llm_rl import verl_plugin  # importing it requires verl
    except ImportError as e:
        raise ValueError(
            f"the installed sam_core does not fit these recipes ({e}): call `pip install ./sam_core .` in the checkout"
        ) from None

    if hooks.is_patched(verl):
        raise ValueError(
            f"{verl} has the patches of an earlier release of this project, which plugins have replaced: run "
            "`pip install --force-reinstall --no-deps verl==0.9.1`"
        )
    hooks.check(verl, "0.9.1")
    verl_plugin.check(verl)
    missing = PLUGINS - {plugin.name for plugin in importlib.metadata.entry_points(group="verl.plugins")}
    if missing:
        raise ValueError(
            f"the plugins {', '.join(sorted(missing))} of verl are not installed: run `pip install ./sam_core "
            ".` in the checkout"
        )
    chosen = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    if chosen.lower() != "auto" and not {*map(str.strip, chosen.lower().split(","))} >= PLUGINS:
        raise ValueError(
            f"VERL_USE_EXTERNAL_PLUGINS is {chosen!r}, which excludes plugins that recipes need: unset it, or add "
            f"{', '.join(sorted(PLUGINS))}"
        )
