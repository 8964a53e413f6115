# SPDX-License-Identifier: Apache-2.0
"""The keys of a recipe, one row each: what a value may be, what it means, and verl's key for it in each pin set.

verl 0.6.1 (pin set vllm-0.11) and 0.9.1 (vllm-0.23) name many settings differently; the names on the right were checked
by composing both configurations (tests/compose).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sam_core.options import SWITCHES

OLD, NEW = "vllm-0.11", "vllm-0.23"
VERL = {OLD: "verl 0.6.1", NEW: "verl 0.9.1"}
BACKENDS = ("fsdp", "fsdp2", "megatron")

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
_MEGATRON, _FSDP = _ACTOR + "megatron.", _ACTOR + "fsdp_config."
_LAYERS = f"+{_MEGATRON}override_transformer_config."
_SHAPING = "+reward.reward_kwargs.overlong_buffer_cfg."


@dataclass(frozen=True)
class Key:
    """A key of a recipe.

    kind: int, float, bool, str, list, or a tuple of the words that are allowed; least: the smallest number allowed.
    optional: null is allowed, and verl keeps its default.
    old, new: verl's key in pin set vllm-0.11 and vllm-0.23; a mapping where it depends on train.backend ("fsdp" stands
    for both of its versions). Empty: llm_rl alone uses the value, or derives verl's settings from it (llm_rl/config.py).
    """

    name: str
    kind: Any
    meaning: str
    old: str | Mapping[str, str] = ""
    new: str | Mapping[str, str] = ""
    least: float | None = None
    optional: bool = False

    def verl(self, pin_set: str, backend: str) -> str:
        """verl's key in a pin set, "" where there is none."""
        names = self.old if pin_set == OLD else self.new
        if isinstance(names, str):
            return names
        return names.get("megatron" if backend == "megatron" else "fsdp", "")

    def all_of_verl(self, pin_set: str) -> tuple[str, ...]:
        """verl's keys in a pin set for every backend, without the + of an addition."""
        names = self.old if pin_set == OLD else self.new
        return tuple(n.lstrip("+") for n in ([names] if isinstance(names, str) else names.values()) if n)

    def check(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if value is None:
            return None if self.optional else "is not set"
        if isinstance(self.kind, tuple):
            return None if value in self.kind else f"must be one of {', '.join(self.kind)}, got {value!r}"
        least = "" if self.least is None else f" of at least {self.least:g}"
        if self.kind in (int, float):
            number = type(value) is int or (self.kind is float and type(value) is float)
            if not number or (self.least is not None and value < self.least):
                return f"must be a {'whole ' if self.kind is int else ''}number{least}, got {value!r}"
        elif not isinstance(value, self.kind):
            words = {bool: "true or false", str: "a text", list: "a list"}
            return f"must be {words[self.kind]}, got {value!r}"
        return None


def _both(name: str, kind: Any, meaning: str, verl: str | Mapping[str, str], **more: Any) -> Key:
    return Key(name, kind, meaning, verl, verl, **more)


def _megatron(name: str, meaning: str, verl: str, **more: Any) -> Key:
    names = {"megatron": verl}
    return Key(name, int, f"Megatron only: {meaning}", names, names, least=1, **more)


def _by_backend(fsdp: str, megatron: str) -> dict[str, str]:
    return {"fsdp": fsdp, "megatron": megatron}


KEYS = (
    Key("name", str, "name of the recipe, and of its run folder"),
    Key("pin_set", (OLD, NEW), "releases and patches to run on (patches/*); run_*.sh starts that one's environment"),
    _both("seed", int, "of the data's order, of the engine and of seeded sampling", "data.seed", least=0),
    _both(
        "steps",
        int,
        "training steps; a finished run goes on when it is raised",
        "trainer.total_training_steps",
        least=1,
    ),
    Key(
        "sam",
        ("off", *SWITCHES),
        "speculation: off; batch: while at most sam_options.threshold requests run; auto: as much as pays in each step",
    ),
    # ---- model and data
    _both("model.path", str, "folder of the model (Hugging Face format)", "actor_rollout_ref.model.path"),
    _both("model.use_remove_padding", bool, "train on packed sequences", "actor_rollout_ref.model.use_remove_padding"),
    _both("data.train_files", str, "parquet file to train on", "data.train_files"),
    _both("data.val_files", str, "parquet file to validate on", "data.val_files"),
    _both("data.train_batch_size", int, "prompts a training step", "data.train_batch_size", least=1),
    Key(
        "data.gen_batch_size",
        int,
        "prompts a round of generation; verl 0.9.1 has no rounds: prompts in flight at most, a multiple of the train batch",
        old="data.gen_batch_size",
        least=1,
    ),
    _both("data.max_prompt_length", int, "tokens", "data.max_prompt_length", least=1),
    _both("data.max_response_length", int, "tokens", "data.max_response_length", least=1),
    _both(
        "data.truncation", ("left", "right", "middle", "error"), "what happens to a longer prompt", "data.truncation"
    ),
    _both("data.filter_overlong_prompts", bool, "leave longer prompts out beforehand", "data.filter_overlong_prompts"),
    _both("data.shuffle", bool, "in an order that follows from the seed", "data.shuffle"),
    # ---- algorithm
    _both("algorithm.adv_estimator", str, "advantages", "algorithm.adv_estimator"),
    _both("algorithm.clip_ratio_low", float, "lower clipping of the ratio", _ACTOR + "clip_ratio_low", least=0),
    _both("algorithm.clip_ratio_high", float, "upper clipping: clip-higher", _ACTOR + "clip_ratio_high", least=0),
    _both("algorithm.clip_ratio_c", float, "dual clipping", _ACTOR + "clip_ratio_c", least=1),
    _both("algorithm.loss_agg_mode", str, "token-mean: every token counts the same", _ACTOR + "loss_agg_mode"),
    _both("algorithm.entropy_coeff", float, "weight of the entropy bonus", _ACTOR + "entropy_coeff", least=0),
    _both("algorithm.use_kl_loss", bool, "KL divergence from the first model in the loss", _ACTOR + "use_kl_loss"),
    _both("algorithm.use_kl_in_reward", bool, "the same in the reward", "algorithm.use_kl_in_reward"),
    _both(
        "algorithm.filter_groups",
        bool,
        "dynamic sampling: prompts whose answers all score alike are replaced",
        "algorithm.filter_groups.enable",
    ),
    _both("algorithm.filter_metric", str, "score that dynamic sampling compares", "algorithm.filter_groups.metric"),
    _both(
        "algorithm.max_num_gen_batches",
        int,
        "a step that has asked for this many gen batches and still lacks prompts ends the run",
        "algorithm.filter_groups.max_num_gen_batches",
        least=1,
    ),
    Key(
        "algorithm.overlong.enable",
        bool,
        "overlong shaping: a penalty for answers near the longest allowed",
        old="reward_model.overlong_buffer.enable",
        new=_SHAPING + "enable",
    ),
    Key(
        "algorithm.overlong.len",
        int,
        "tokens before the longest over which the penalty grows",
        old="reward_model.overlong_buffer.len",
        new=_SHAPING + "len",
        least=1,
    ),
    Key(
        "algorithm.overlong.penalty_factor",
        float,
        "the penalty at the longest",
        old="reward_model.overlong_buffer.penalty_factor",
        new=_SHAPING + "penalty_factor",
        least=0,
    ),
    # ---- rollout
    _both("rollout.n", int, "answers a prompt", _ROLLOUT + "n", least=1),
    _both("rollout.temperature", float, "of sampling", _ROLLOUT + "temperature", least=0),
    _both("rollout.top_p", float, "of sampling", _ROLLOUT + "top_p", least=0),
    _both("rollout.top_k", int, "of sampling; -1: all", _ROLLOUT + "top_k", least=-1),
    _both(
        "rollout.tensor_model_parallel_size",
        int,
        "dies that share an engine's weights",
        _ROLLOUT + "tensor_model_parallel_size",
        least=1,
    ),
    _both(
        "rollout.data_parallel_size",
        int,
        "engines that share the experts of one model",
        _ROLLOUT + "data_parallel_size",
        least=1,
    ),
    _both(
        "rollout.expert_parallel_size",
        int,
        "dies that share the experts: 1, or tensor times data parallel size",
        _ROLLOUT + "expert_parallel_size",
        least=1,
    ),
    _both("rollout.max_num_seqs", int, "requests that an engine runs at once", _ROLLOUT + "max_num_seqs", least=1),
    _both("rollout.max_num_batched_tokens", int, "tokens an engine step", _ROLLOUT + "max_num_batched_tokens", least=1),
    _both(
        "rollout.gpu_memory_utilization",
        float,
        "share of a die's memory that the engine may take",
        _ROLLOUT + "gpu_memory_utilization",
        least=0,
    ),
    _both("rollout.enforce_eager", bool, "eager mode, no captured graphs", _ROLLOUT + "enforce_eager"),
    Key(
        "rollout.expected_length",
        int,
        "mean tokens of prompt and answer, for the layout's warning",
        least=1,
        optional=True,
    ),
    # ---- training layout
    _both("train.backend", BACKENDS, "what shards the training state", _ACTOR + "strategy"),
    _megatron("train.tensor_parallel", "dies that share each layer", _MEGATRON + "tensor_model_parallel_size"),
    _megatron("train.pipeline_parallel", "stages of layers", _MEGATRON + "pipeline_model_parallel_size"),
    _megatron("train.context_parallel", "dies that share a sequence", _MEGATRON + "context_parallel_size"),
    _megatron("train.expert_parallel", "dies that share the experts", _MEGATRON + "expert_model_parallel_size"),
    _megatron("train.expert_tensor_parallel", "dies that share an expert", _MEGATRON + "expert_tensor_parallel_size"),
    _megatron(
        "train.first_stage_layers",
        "layers of the first stage; null: as many as the others",
        _LAYERS + "num_layers_in_first_pipeline_stage",
        optional=True,
    ),
    _megatron(
        "train.last_stage_layers",
        "layers of the last stage; null: as many as the others",
        _LAYERS + "num_layers_in_last_pipeline_stage",
        optional=True,
    ),
    Key(
        "train.sequence_parallel",
        int,
        "FSDP only: dies that share a sequence (Ulysses)",
        old={"fsdp": _ACTOR + "ulysses_sequence_parallel_size"},
        new={"fsdp": _FSDP + "ulysses_sequence_parallel_size"},
        least=1,
    ),
    _both(
        "train.param_offload",
        bool,
        "parameters and gradients leave the device between updates",
        _by_backend(_FSDP + "param_offload", _MEGATRON + "param_offload"),
    ),
    _both(
        "train.optimizer_offload",
        bool,
        "the optimizer's state leaves the device between updates",
        _by_backend(_FSDP + "optimizer_offload", _MEGATRON + "optimizer_offload"),
    ),
    Key("train.recompute", bool, "recompute activations in the backward pass"),
    Key(
        "train.torch_compile",
        bool,
        "compile the training step",
        old=_ACTOR + "use_torch_compile",
        new={"fsdp": _FSDP + "use_torch_compile"},
    ),
    _both("train.ppo_mini_batch_size", int, "prompts an update", _ACTOR + "ppo_mini_batch_size", least=1),
    Key(
        "train.micro_batch_size",
        int,
        "answers a die at once; null with train.max_tokens_per_die",
        least=1,
        optional=True,
    ),
    Key(
        "train.max_tokens_per_die",
        int,
        "tokens a die at once, answers packed to fit; null with train.micro_batch_size",
        least=1,
        optional=True,
    ),
    _both("train.lr", float, "learning rate", _ACTOR + "optim.lr", least=0),
    _both("train.lr_warmup_steps", int, "steps up to the learning rate", _ACTOR + "optim.lr_warmup_steps", least=0),
    _both("train.weight_decay", float, "of AdamW", _ACTOR + "optim.weight_decay", least=0),
    Key(
        "train.clip_grad",
        float,
        "gradients are scaled down to this norm",
        old=_by_backend(_ACTOR + "grad_clip", _ACTOR + "optim.clip_grad"),
        new=_ACTOR + "optim.clip_grad",
        least=0,
    ),
    # ---- trainer, checkpoints, cluster
    _both("trainer.logger", list, "where steps are logged; file must be among them", "trainer.logger"),
    _both("trainer.val_before_train", bool, "validate before the first step", "trainer.val_before_train"),
    _both("trainer.test_freq", int, "validate every so many steps; -1: never", "trainer.test_freq", least=-1),
    Key(
        "trainer.step_timeout",
        int,
        "seconds without a finished step, start included, after which a run is ended",
        least=1,
    ),
    Key("checkpoints.every", int, "training steps; 0: none, and a broken run starts again", least=0),
    Key("checkpoints.keep", int, "newest checkpoints that stay, and as many of before the last start", least=2),
    Key("cluster.device", ("npu", "cuda", "cpu"), "what verl trains on", old="trainer.device", new="trainer.device"),
    _both("cluster.nodes", int, "hosts", "trainer.nnodes", least=1),
    _both("cluster.dies_per_node", int, "devices of a host that train", "trainer.n_gpus_per_node", least=1),
    Key(
        "cluster.die_memory", float, "GiB of a device; null: the layout's memory is not checked", least=1, optional=True
    ),
    Key(
        "cluster.interface",
        str,
        "network interface between hosts; null: what each host's environment says",
        optional=True,
    ),
    Key("cluster.hccl_ports", str, "ports reserved for HCCL, FIRST-LAST", optional=True),
)
BY_NAME = {key.name: key for key in KEYS}
SECTIONS = {key.name.rpartition(".")[0] for key in KEYS} - {""} | {"algorithm"}
FREE = ("sam_options", "env", "local_ray", "verl")
"""Mappings whose keys others know: sam_core's options, the environment, ray.init of a Ray that the run starts, verl's own."""

RETIRED = {
    NEW: ("reward_model.", "algorithm.rollout_is", "actor_rollout_ref.actor.load_weight", "custom_reward_function.",
          "actor_rollout_ref.rollout.skip_rollout", "trainer.use_legacy_worker_impl",
          "actor_rollout_ref.rollout.update_weights_bucket_megabytes", "actor_rollout_ref.actor.megatron.grad_offload"),
    OLD: ("reward.", "transfer_queue.", "trainer.v1.", "trainer.use_v1", "actor_rollout_ref.rollout.checkpoint_engine.",
          "actor_rollout_ref.rollout.router_config_path", "actor_rollout_ref.rollout.seed", "trainer.checkpoint_callback_class",
          "actor_rollout_ref.rollout.logprobs_mode", "algorithm.filter_groups.max_inflight_gen_batches"),
}  # fmt: skip
"""Where keys of verl begin that the pin set's own release has not, and the other pin set's has."""


def unknown(name: str) -> str:
    """The sentence about a key that is not in the table."""
    last = name.rpartition(".")[2]

    def likeness(known: str) -> float:
        pairs = ((name, known), (last, known.rpartition(".")[2]))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    near = max((*BY_NAME, *FREE), key=likeness)
    return f"unknown key {name!r}" + (
        f": is {near} meant?" if likeness(near) > 0.6 else "; docs/recipes.md lists the keys"
    )


def misplaced(verl_key: str, pin_set: str) -> str | None:
    """What is wrong with a key of verl given under `verl:`, or None: it has a key of ours, or is the other release's."""
    bare, other = verl_key.replace("+", ""), NEW if pin_set == OLD else OLD
    for key in KEYS:
        if bare in key.all_of_verl(pin_set):
            return f"verl.{verl_key} is what {key.name} sets: use that"
    for key in KEYS:
        if bare in key.all_of_verl(other):
            return (
                f"verl.{verl_key} is a key of {VERL[other]} (pin set {other}), not of {VERL[pin_set]}: use {key.name}"
            )
    if bare.startswith(RETIRED[pin_set]):
        return f"verl.{verl_key} is a key of {VERL[other]} (pin set {other}), not of {VERL[pin_set]}"
    return None
