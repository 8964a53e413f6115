# SPDX-License-Identifier: Apache-2.0
"""A recipe: a typed, frozen object that is validated once. llm_rl/config.py reads it from files.

The field descriptions are the reference of a recipe's keys. llm_rl/pin_set.py says where they are mapped to verl's.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from sam_core.options import VERIFY, Options, SwitchName

from llm_rl.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
Backend = Literal["fsdp", "fsdp2", "megatron"]

RepositoryPath = Annotated[str, AfterValidator(lambda path: str((ROOT / path).resolve()))]
"""A path, absolute or relative to the repository."""
Number = int | float
"""An integer stays an integer, so that verl gets it as written."""
OURS = "ours"
"""Marks a key that llm_rl uses itself; no key map of verl's has it."""


class Section(BaseModel):
    """A group of keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Model(Section):
    path: RepositoryPath = Field(description="folder of the model, in Hugging Face format")
    use_remove_padding: bool = Field(description="train on packed sequences")


class Data(Section):
    train_files: RepositoryPath = Field(description="parquet file to train on")
    val_files: RepositoryPath = Field(description="parquet file to validate on")
    train_batch_size: int = Field(ge=1, description="prompts per training step")
    gen_batch_size: int = Field(
        ge=1,
        description="prompts per round of generation; without rounds: maximum in flight, a multiple of "
        "data.train_batch_size",
    )
    max_prompt_length: int = Field(ge=1, description="maximum tokens of a prompt")
    max_response_length: int = Field(ge=1, description="maximum tokens of an answer")
    truncation: Literal["left", "right", "middle", "error"] = Field(
        description="how longer prompts are truncated, or error"
    )
    filter_overlong_prompts: bool = Field(description="drop longer prompts before training")
    shuffle: bool = Field(description="shuffle the prompts according to the seed")


class Overlong(Section):
    enable: bool = Field(description="penalize answers near the maximum length")
    len: int = Field(ge=1, description="tokens over which the penalty grows")
    penalty_factor: Number = Field(ge=0, description="the penalty at the maximum length")


class Algorithm(Section):
    adv_estimator: str = Field(description="advantage estimator that needs no critic (not gae)")
    clip_ratio_low: Number = Field(ge=0, description="lower clip range")
    clip_ratio_high: Number = Field(ge=0, description="upper clip range (clip-higher)")
    clip_ratio_c: Number = Field(ge=1, description="bound of dual clipping")
    loss_agg_mode: str = Field(description="aggregation of the loss; token-mean: equal weight per token")
    entropy_coeff: Number = Field(ge=0, description="weight of the entropy bonus")
    use_kl_loss: bool = Field(description="add the KL divergence from the initial model to the loss")
    use_kl_in_reward: bool = Field(description="add it to the reward")
    filter_groups: bool = Field(description="dynamic sampling: replace prompts whose answers all score the same")
    filter_metric: str = Field(description="score that dynamic sampling compares")
    max_num_gen_batches: int = Field(
        ge=1, description="generation batches after which a step that lacks prompts ends the run"
    )
    overlong: Overlong


class Rollout(Section):
    n: int = Field(ge=1, description="answers per prompt")
    temperature: Number = Field(ge=0, description="sampling temperature")
    top_p: Number = Field(ge=0, description="nucleus sampling")
    top_k: int = Field(ge=-1, description="top-k sampling; -1: all tokens")
    tensor_model_parallel_size: int = Field(ge=1, description="devices that share an engine's weights")
    data_parallel_size: int = Field(ge=1, description="engines that share the experts of one model")
    expert_parallel_size: int = Field(
        ge=1, description="devices that share the experts: 1, or tensor times data parallel size"
    )
    max_num_seqs: int = Field(ge=1, description="maximum concurrent requests per engine")
    max_num_batched_tokens: int = Field(ge=1, description="maximum tokens per engine step")
    gpu_memory_utilization: Number = Field(ge=0, description="share of device memory for the engine")
    enforce_eager: bool = Field(description="eager mode, without captured graphs")
    expected_length: Annotated[int | None, OURS] = Field(
        None, ge=1, description="expected mean tokens of prompt and answer, to warn of preemption"
    )
    expected_round: Annotated[int | None, OURS] = Field(
        None, ge=1, description="expected seconds per round of generation; all rounds must fit step_timeout"
    )


class Train(Section):
    backend: Backend = Field(description="how the training state is sharded")
    tensor_parallel: int = Field(ge=1, description="Megatron only: devices that share each layer")
    pipeline_parallel: int = Field(ge=1, description="Megatron only: stages of layers")
    context_parallel: int = Field(ge=1, description="Megatron only: devices that share a sequence")
    expert_parallel: int = Field(ge=1, description="Megatron only: devices that share the experts")
    expert_tensor_parallel: int = Field(ge=1, description="Megatron only: devices that share an expert")
    first_stage_layers: int | None = Field(
        None, ge=1, description="Megatron only: layers of the first stage; null: as the others"
    )
    last_stage_layers: int | None = Field(
        None, ge=1, description="Megatron only: layers of the last stage; null: as the others"
    )
    sequence_parallel: int = Field(ge=1, description="FSDP only: devices that share a sequence (Ulysses)")
    param_offload: bool = Field(description="keep parameters and gradients on the host between updates")
    optimizer_offload: bool = Field(description="keep the optimizer state on the host between updates")
    recompute: bool = Field(description="recompute activations in the backward pass")
    torch_compile: bool = Field(description="compile the training step")
    ppo_mini_batch_size: int = Field(ge=1, description="prompts per update")
    micro_batch_size: int | None = Field(
        None, ge=1, description="answers per device and pass; null with train.max_tokens_per_die"
    )
    max_tokens_per_die: int | None = Field(
        None, ge=1, description="tokens per device and pass; null with train.micro_batch_size"
    )
    lr: Number = Field(ge=0, description="learning rate")
    lr_warmup_steps: int = Field(ge=0, description="warm-up steps")
    weight_decay: Number = Field(ge=0, description="weight decay of AdamW")
    clip_grad: Number = Field(ge=0, description="maximum norm of the gradients")


Mode = Literal["sync", "colocate_async", "separate_async", "one_step_off", "fully_async"]
MODES = get_args(Mode)
SEPARATE = MODES[2:]
"""Modes of verl's trainer that generate and train on different hosts."""


class Trainer(Section):
    mode: Mode = Field(description="verl's trainer ([modes](recipes.md#trainer-modes))")
    logger: list[str] = Field(description="loggers of training steps; must include file")
    val_before_train: bool = Field(description="validate before the first step")
    test_freq: int = Field(ge=-1, description="steps between validations; -1: never")
    step_timeout: Annotated[int, OURS] = Field(
        ge=1, description="seconds per step, start included, after which a run is ended"
    )
    hang_timeout: Annotated[int, OURS] = Field(
        ge=1,
        description="seconds without an engine step or a growing checkpoint after which a run is ended, from the "
        "second step on; at least three times the earlier steps' time without generation",
    )


class Checkpoints(Section):
    every: Annotated[int, OURS] = Field(ge=0, description="training steps between checkpoints; 0: none")
    keep: int = Field(ge=2, description="newest checkpoints to keep, and as many from before the latest start")
    write_rate: Annotated[Number | None, OURS] = Field(
        None, ge=0.001, description="GB/s that all hosts together write to the run's folder; null: not measured"
    )


class Cluster(Section):
    device: Literal["npu", "cuda", "cpu"] = Field(description="device that verl trains on")
    nodes: int = Field(ge=1, description="number of hosts")
    dies_per_node: int = Field(ge=1, description="devices per host")
    rollout_nodes: int = Field(
        ge=1,
        description="further hosts that only generate, in the trainer modes that have such hosts",
    )
    die_memory: Annotated[Number | None, OURS] = Field(
        None, ge=1, description="memory of a device, GiB; null: not checked"
    )
    interface: Annotated[str | None, OURS] = Field(
        None, description="network interface between hosts; null: from each host's environment"
    )
    hccl_ports: Annotated[str | None, OURS] = Field(None, description="ports reserved for HCCL, FIRST-LAST")

    @property
    def dies(self) -> int:
        """Devices of all hosts."""
        return self.nodes * self.dies_per_node

    @property
    def unit(self) -> str:
        """The word for a device that users read."""
        return {"npu": "die", "cuda": "GPU", "cpu": "device"}[self.device]


class Recipe(Section):
    """All settings of a run. Fields of type dict hold keys that vLLM, Ray, verl or sam_core define."""

    name: Annotated[str, OURS] = Field(description="name of the recipe, and of its run folder")
    profile: Annotated[Literal["article", "recommended"] | None, OURS] = Field(
        description="settings of the article, or ours; null: no profiles"
    )
    pin_set: Annotated[str, OURS] = Field(
        description="pin set, a folder of patches/; run_*.sh starts its environment, or PYTHON"
    )
    seed: int = Field(ge=0, description="seed of data order, engine and seeded sampling")
    steps: int = Field(ge=1, description="training steps; raise it to continue a finished run")
    sam: Annotated[
        Literal["off", SwitchName],
        BeforeValidator(lambda value: "off" if value is False else value),  # YAML reads a bare `off` as false
        OURS,
    ] = Field(
        description="speculation; batch: while at most sam_options.threshold requests run; auto: where it pays off"
    )
    model: Model
    data: Data
    algorithm: Algorithm
    rollout: Rollout
    train: Train
    trainer: Trainer
    checkpoints: Checkpoints
    cluster: Cluster
    sam_options: dict[str, Any]
    """k: tokens per draft; the other keys are those of sam_core.options.Options."""
    env: dict[str, Any]
    """Environment variables of all processes."""
    local_ray: dict[str, Any]
    """Arguments of ray.init if the run starts its own Ray."""
    verl: dict[str, Any]
    """verl's own keys."""

    @property
    def title(self) -> str:
        """The name, with the profile unless it is the article's."""
        return f"{self.name}-recommended" if self.profile == "recommended" else self.name

    @cached_property
    def options(self) -> Options:
        """The options of the SAM proposer."""
        sam = self.sam_options | ({} if self.sam == "off" else {"switch": self.sam})
        return Options.from_engine(sam.pop("k"), sam, verify=VERIFY)

    @property
    def k(self) -> int:
        """Draft tokens for which the engine makes room."""
        return 0 if self.sam == "off" else self.sam_options["k"]

    @property
    def separate(self) -> bool:
        """Whether generation and training run on different hosts."""
        return self.trainer.mode in SEPARATE

    @property
    def hosts(self) -> int:
        """Number of hosts that train or generate."""
        return self.cluster.nodes + (self.cluster.rollout_nodes if self.separate else 0)

    @property
    def rollout_dies(self) -> int:
        """Number of devices that generate."""
        cluster = self.cluster
        return cluster.rollout_nodes * cluster.dies_per_node if self.separate else cluster.dies

    @property
    def sequence_length(self) -> int:
        """Maximum tokens of prompt and answer together."""
        return self.data.max_prompt_length + self.data.max_response_length

    @property
    def verl_keys(self) -> dict[str, Any]:
        """Values under `verl:` by dotted name, without the leading + of added keys."""
        return {name.lstrip("+"): value for name, value in leaves(self.verl)}

    @property
    def has_reference(self) -> bool:
        """Whether verl keeps the initial model as the reference of a KL divergence; with LoRA the actor contains it."""
        lora = ("lora_rank", "lora.rank", "lora_adapter_path")
        if any(self.verl_keys.get(f"actor_rollout_ref.model.{key}") for key in lora):
            return False
        return self.algorithm.use_kl_loss or self.algorithm.use_kl_in_reward

    def history(self, run_dir: Path) -> str | None:
        """Folder that keeps the engines' history after the run; by default only runs with checkpoints have one."""
        if self.sam == "off" or "history" not in self.options.sources:
            return None
        return self.options.history or (f"{run_dir}/history" if self.checkpoints.every else None)

    @property
    def keeps_weights_on_host(self) -> bool:
        """Whether the engines' weights are in host memory while the actor trains.

        Meanwhile verl puts the engines to sleep: on NPUs at level 1, which keeps the weights; on GPUs at level 2, which
        drops them.
        """
        keys = ("free_cache_engine", "enable_sleep_mode")
        return (
            self.cluster.device == "npu"
            and not self.separate
            and all(self.verl_keys.get(f"actor_rollout_ref.rollout.{key}", True) for key in keys)
        )

    @model_validator(mode="after")
    def _check_sam(self) -> Recipe:
        if "k" not in self.sam_options:
            raise ValueError("sam_options does not set k, the tokens per draft")
        if "switch" in self.sam_options:
            raise ValueError("the switch is chosen by sam=off, sam=batch or sam=auto, not in sam_options")
        try:
            _ = self.options
        except ValueError as e:
            raise ValueError(f"sam_options: {e}") from None
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Recipe:
        """Check keys that exclude or need each other; llm_rl/layout.py checks what depends on the number of devices."""
        if (self.train.micro_batch_size is None) == (self.train.max_tokens_per_die is None):
            raise ValueError("set one of train.micro_batch_size and train.max_tokens_per_die, and the other to null")
        if self.algorithm.adv_estimator == "gae" or self.verl_keys.get("critic.enable"):
            raise ValueError(
                "algorithm.adv_estimator gae and verl.critic.enable train a critic, which recipes do not support: "
                "choose an estimator without a critic, such as grpo"
            )
        if "file" not in self.trainer.logger:
            raise ValueError("trainer.logger lacks file, whose log the launcher follows: add it")
        ports = self.cluster.hccl_ports
        if ports is not None:
            if not re.fullmatch(r"\d{4,5}-\d{4,5}", ports):
                raise ValueError(f"cluster.hccl_ports must be two port numbers, FIRST-LAST, got {ports!r}")
            first, last = map(int, ports.split("-"))
            processes = 2 * self.cluster.dies_per_node
            if not 1024 <= first <= last <= 65535 or last - first + 1 < 2 * processes:
                raise ValueError(
                    f"cluster.hccl_ports is {ports}, a host has {processes} processes with HCCL (a trainer and an "
                    "engine for each die), and a run that just ended may still hold its ports: give it at least "
                    f"{2 * processes} ports from 1024 to 65535"
                )
        rounds = self.algorithm.max_num_gen_batches if self.algorithm.filter_groups else 1
        longest = rounds * (self.rollout.expected_round or 0)
        if longest >= self.trainer.step_timeout:
            raise ValueError(
                f"trainer.step_timeout is {self.trainer.step_timeout} s, and {rounds} rounds of generation "
                f"(algorithm.max_num_gen_batches) of {self.rollout.expected_round} s (rollout.expected_round) take "
                f"{longest}: raise it, or lower the number of rounds"
            )
        if self.trainer.mode != "sync" and self.checkpoints.every:
            raise ValueError(
                f"trainer.mode {self.trainer.mode} is not resumed after checkpoints, only sync is: set "
                "checkpoints.every=0"
            )
        if self.data.gen_batch_size < self.data.train_batch_size:
            raise ValueError(
                f"data.gen_batch_size {self.data.gen_batch_size} is below data.train_batch_size "
                f"{self.data.train_batch_size}"
            )
        return self


@dataclass(frozen=True)
class Key:
    """The values that a key of a recipe may have.

    kind: int, float, bool, str, list, dict, or a tuple of the allowed words; min_value: the smallest allowed number;
    optional: whether null is allowed; is_mapped: whether it sets keys of verl's.
    """

    name: str
    kind: Any
    meaning: str
    min_value: float | None
    optional: bool
    is_mapped: bool

    @property
    def expected(self) -> str:
        """The allowed values, for an error message."""
        if isinstance(self.kind, tuple):
            return f"one of {', '.join(self.kind)}"
        bound = "" if self.min_value is None else f" of at least {self.min_value:g}"
        words = {bool: "true or false", str: "a string", list: "a list", dict: "a mapping"}
        return words.get(self.kind) or f"a {'whole ' if self.kind is int else ''}number{bound}"


def section_of(field: Any) -> type[Section] | None:
    """The class of a field that is a group of keys, else None."""
    return field.annotation if isinstance(field.annotation, type) and issubclass(field.annotation, Section) else None


def _keys(section: type[Section], prefix: str = "") -> Iterator[Key]:
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            yield from _keys(inner, f"{prefix}{name}.")
            continue
        union = get_origin(field.annotation) in (Union, types.UnionType)
        kinds = set(get_args(field.annotation)) if union else {field.annotation}
        kind = float if float in kinds else next(iter(kinds - {types.NoneType}))
        kind = get_args(kind) if get_origin(kind) is Literal else get_origin(kind) or kind
        minimum = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
        is_mapped = kind is not dict and OURS not in field.metadata
        yield Key(f"{prefix}{name}", kind, field.description or "", minimum, types.NoneType in kinds, is_mapped)


KEYS = {key.name: key for key in _keys(Recipe)}
"""The keys of a recipe by dotted name, in the order in which they are passed to verl."""
MAPPINGS = tuple(name for name, key in KEYS.items() if key.kind is dict)
"""Keys that hold mappings whose keys vLLM, Ray, verl or sam_core define."""
MAPPED = {name for name, key in KEYS.items() if key.is_mapped}
"""Keys that a key map of verl's must have."""


def leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of each leaf; a + on any key of a path marks the path as an addition to verl's keys."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            path = f"{prefix}{key}"
            yield ("+" if "+" in path else "") + path.replace("+", ""), value


def unknown(name: str) -> str:
    """An error message about an unknown key."""
    last = name.rpartition(".")[2]

    def likeness(known: str) -> float:
        whole, part = (
            difflib.SequenceMatcher(None, *pair).ratio() for pair in ((name, known), (last, known.rpartition(".")[2]))
        )
        return max(whole, part - 0.2)  # a key in another group must be more similar

    nearest = max(KEYS, key=likeness)
    hint = f": is {nearest} meant?" if likeness(nearest) > 0.6 else "; docs/recipe-keys.md lists the keys"
    return f"unknown key {name!r}{hint}"


def validate(values: dict[str, Any], origin: str) -> Recipe:
    """The recipe with these values. Raises UserError for the first invalid one. origin: where the values come from."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as e:
        error = e.errors(include_url=False)[0]
    if error["type"] == "value_error":
        raise UserError(str(error["ctx"]["error"]))
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        raise UserError(f"{unknown(path)} (in {origin})")
    key = next(key for name, key in KEYS.items() if f"{path}.".startswith(f"{name}.") or name.startswith(f"{path}."))
    value = error["input"]
    unset = error["type"] == "missing" or value is None
    problem = "is not set" if unset else f"must be {key.expected}, got {value!r}"
    raise UserError(f"{key.name} {problem} (in {origin})")
