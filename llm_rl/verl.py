# SPDX-License-Identifier: Apache-2.0
"""verl's part of a run: its settings for a recipe, its own check of them, and its command."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from sam_core.options import Options

from llm_rl import prometheus
from llm_rl.entry_point import EntryPoint
from llm_rl.environment import collective_timeout
from llm_rl.errors import UserError
from llm_rl.pin_set import RecipePins
from llm_rl.recipe import MAPPINGS, Recipe, leaves

PROMETHEUS = "actor_rollout_ref.rollout.prometheus."
PLAIN = re.compile(r"(?!(null|true|false|inf|nan)$)[a-z_/][a-z0-9_./:-]*", re.ASCII | re.IGNORECASE)
"""Strings that Hydra reads as themselves without quotes."""


def overrides(recipe: Recipe, pin_set: RecipePins, run_dir: Path, env: Mapping[str, str], ray: str) -> list[str]:
    """Command-line overrides of verl's configuration for a recipe and for this run of it.

    env: the environment of all of verl's processes, on every host; ray: address of a cluster, or `local` for one that
    the run starts. Raises UserError for a key under `verl:` that is set here.
    """
    for group in MAPPINGS:
        for name, _ in leaves(getattr(recipe, group)):
            if not re.fullmatch(r"\+?[\w@/:-]+(\.[\w@/:-]+)*", name):
                raise UserError(f"{group}.{name} is not a valid key: write letters, digits, _ and - between dots")
    settings = pin_set.settings(recipe) | _common(recipe, pin_set)
    settings |= {
        "trainer.experiment_name": recipe.title,
        "trainer.default_local_dir": f"{run_dir}/checkpoints",
        "+ray_kwargs.ray_init.address": ray,
    }
    if ray == "local":
        for name, value in recipe.local_ray.items():
            settings[f"{'' if name == 'num_cpus' else '+'}ray_kwargs.ray_init.{name}"] = value
    settings |= {f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}": value for name, value in env.items()}
    settings |= _speculation(recipe, pin_set, run_dir)
    if prometheus.folder():
        source = str(prometheus.verl_file(run_dir))
        settings |= {f"{PROMETHEUS}enable": True, f"{PROMETHEUS}file": source}
    names = {name.lstrip("+") for name in settings}
    for name, value in leaves(recipe.verl):
        if name.lstrip("+") in names:
            raise UserError(f"verl.{name} follows from other keys of the recipe (llm_rl/verl.py): set those")
        settings[name] = value
    return [f"{name}={_hydra(value)}" for name, value in settings.items()]


def _common(recipe: Recipe, pin_set: RecipePins) -> dict[str, Any]:
    """Settings that every pin set derives from keys in the same way."""
    train = recipe.train
    settings: dict[str, Any] = {
        "actor_rollout_ref.rollout.max_model_len": recipe.sequence_length,
        "actor_rollout_ref.actor.use_dynamic_bsz": train.max_tokens_per_die is not None,
        # verl 0.6.1 requires it with Megatron, even with use_dynamic_bsz.
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": train.micro_batch_size or 1,
        "trainer.save_freq": recipe.checkpoints.every or -1,
        "trainer.resume_mode": "auto" if recipe.checkpoints.every else "disable",
    }
    if recipe.cluster.device == "npu":  # named after NCCL, but it applies to any backend
        settings["actor_rollout_ref.nccl_timeout"] = collective_timeout(recipe, pin_set)
    if train.backend == "megatron" and train.recompute:
        layers = "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_"
        settings |= {layers + "granularity": "full", layers + "method": "uniform", layers + "num_layers": 1}
    if train.backend == "megatron" and recipe.cluster.device == "npu":
        settings |= _mindspeed(recipe)
    return settings


def _mindspeed(recipe: Recipe) -> dict[str, Any]:
    """MindSpeed's faster operators, which it reads from the transformer's configuration, but for those that the recipe
    sets under `verl:`. They are those of verl's guide and of the article's scripts, and were not measured.
    """
    # MindSpeed checks position_embedding_type where the rotary embedding is fused, and verl's configuration has none.
    # The fused update of ring attention needs a compiler, the experts' operators CANN 8.3 and torch_npu 7.2.
    settings: dict[str, Any] = {"use_fused_rotary_pos_emb": True, "position_embedding_type": "rope"}
    if recipe.train.context_parallel > 1:
        settings |= {"use_cp_send_recv_overlap": True, "use_fused_ring_attention_update": True}
    if recipe.train.expert_parallel > 1:
        settings |= {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True, "moe_permute_fusion": True}
    transformer = "actor_rollout_ref.actor.megatron.override_transformer_config."
    given = recipe.verl_keys
    return {f"+{transformer}{name}": value for name, value in settings.items() if transformer + name not in given}


def _speculation(recipe: Recipe, pin_set: RecipePins, run_dir: Path) -> dict[str, Any]:
    """Settings of SAM for the engine. Without speculation it samples in the same mode, for comparison."""
    if recipe.sam == "off":
        verify = recipe.options.verify
        additional = "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config."
        return {additional + "sam_verify": verify} if verify != Options.verify else {}
    sam = recipe.sam_options | {"history": recipe.history(run_dir), "switch": recipe.sam}
    config = pin_set.speculation
    return {
        **pin_set.speculation_on,
        config + "method": "sam",
        config + "num_speculative_tokens": sam.pop("k"),
        **{f"{config}sam.{name}": value for name, value in sam.items()},
    }


def compose(entry: EntryPoint, release: str, overrides: list[str]) -> DictConfig:
    """verl's own configuration with the overrides, composed as verl does at its start.

    release: name and version of verl. Raises UserError if verl rejects them.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if entry.search_path:
        overrides = [*overrides, f"hydra.searchpath={_hydra([f'file://{entry.search_path}'])}"]
    try:
        with initialize_config_dir(str(entry.config_folder), version_base=None):
            config = compose(entry.config_name, overrides)
        OmegaConf.to_container(config, resolve=True)  # as verl does, but only after its start
        return config
    except (HydraException, OmegaConfBaseException, ValueError) as e:
        raise UserError(f"{release} {_rejection(e)}") from None


def _rejection(error: Exception) -> str:
    """The end of a sentence about an error of Hydra, without its hints, which are about its own command line."""
    if unknown := re.match(r"Could not override '(\S+)'", str(error)):
        group, dot, last = unknown[1].rpartition(".")
        return f"has no key {unknown[1]}: correct it, or write verl.{group}{dot}+{last} to add it"
    if known := re.match(r"Could not append to config\. An item is already at '(\S+)'", str(error)):
        return f"has the key {known[1]} already: write verl.{known[1]}, without +"
    lines = [*str(error).splitlines()[:2], *str(error.__cause__ or error).splitlines()[:1]]
    return f"rejects the recipe: {' '.join(line.strip() for line in dict.fromkeys(lines))}"


def command(entry: EntryPoint, overrides: list[str], run_dir: Path) -> list[str]:
    """The command that trains, to be run in `entry.folder`."""
    output = f"hydra.run.dir={_hydra(str(run_dir / 'hydra'))}"
    return [sys.executable, "-m", entry.module, *entry.arguments, *overrides, output]


def _hydra(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_hydra(v) for v in value) + "]"
    if isinstance(value, dict):
        keys = {name: re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", str(name)) for name in value}
        return "{" + ",".join(f"{keys[name]}:{_hydra(v)}" for name, v in value.items()) + "}"
    if not isinstance(value, str) or PLAIN.fullmatch(value):
        return str(value)
    return QuotedString(value, Quote.single).with_quotes()
