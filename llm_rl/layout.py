# SPDX-License-Identifier: Apache-2.0
"""Calculate whether a recipe fits its devices: parallel sizes, memory of rollout and training, waves of requests.

Memory is calculated from the model's shapes, that of HCCL's communicators from their groups
(llm_rl/communicators.py). Activations and fragmentation are not modelled but covered by RESERVE. In an engine RESERVE
also covers its communicators, unless this leaves less than ACTIVATIONS for activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_rl import communicators
from llm_rl.errors import UserError
from llm_rl.recipe import Recipe
from llm_rl.shape import Shape, why_unknown

GIB = 1 << 30
MAX_NODES = 64
"""Maximum number of hosts that is tried for a layout."""
RESERVE, ACTIVATIONS = 8.0, 4.0
"""GiB per device for what is not modelled, in rollout and in training, and for an engine's activations alone. They are
assumptions: the ends of the range 4 to 8."""

OTHER_MODELS = ("reward.reward_model.enable", "reward_model.enable", "distillation.enabled")
"""Keys that make a release of verl run an additional model."""


@dataclass(frozen=True)
class RolloutMemory:
    """Memory of a device while it generates, in GiB, and the load of an engine.

    pinned: host memory of a device's weights while the engine sleeps; states: a request's states in layers that keep
    one; sequence: KV cache and states of one sequence of maximum length; requests: requests per engine and round,
    served in `waves`.
    """

    weights: float
    communicators: float
    pinned: float
    budget: float
    kv: float
    states: float
    sequence: float
    full_sequences: float
    mean_tokens: float
    requests: int
    waves: int


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of a device while it trains, in GiB.

    reference: weights of the reference model if they stay on the device; reference_host: memory per host for them if
    they do not; host: memory per host for the optimizer state if it is offloaded.
    """

    data_parallel: int
    weights: float
    gradients: float
    optimizer: float
    logits: float
    communicators: float
    host: float
    reference: float
    reference_host: float

    @property
    def total(self) -> float:
        state = self.weights + self.gradients + self.optimizer + self.reference
        return state + self.logits + self.communicators


def fitting_nodes(recipe: Recipe, model: Shape | None = None) -> list[int]:
    """Values of cluster.nodes up to MAX_NODES that fit the recipe's parallel sizes and batch sizes."""
    fits = []
    for nodes in range(1, MAX_NODES + 1):
        cluster = recipe.cluster.model_copy(update={"nodes": nodes})
        try:
            _check_sizes(recipe.model_copy(update={"cluster": cluster}), model)
        except UserError:
            continue
        fits.append(nodes)
    return fits


def check_sizes(recipe: Recipe, model: Shape | None) -> None:
    """Raise UserError unless the parallel sizes divide the devices and the model; it names the node counts that fit."""
    try:
        _check_sizes(recipe, model)
    except UserError as e:
        fits = [str(nodes) for nodes in fitting_nodes(recipe, model)]
        if not fits or str(recipe.cluster.nodes) in fits:
            raise
        may = f"with these sizes cluster.nodes may be {', '.join(fits)}, got {recipe.cluster.nodes}"
        raise UserError(f"{e}: {may}") from None


def _check_sizes(recipe: Recipe, model: Shape | None) -> None:
    dies, rollout_dies, unit = recipe.cluster.dies, recipe.rollout_dies, recipe.cluster.unit
    rollout, train = recipe.rollout, recipe.train
    tp, dp, ep = rollout.tensor_model_parallel_size, rollout.data_parallel_size, rollout.expert_parallel_size

    def divides(what: str, size: int, of: str, number: int) -> None:
        if number % size:
            raise UserError(f"{what} is {size}, which does not divide the number of {of}, {number}")

    divides("rollout.tensor_model_parallel_size x rollout.data_parallel_size", tp * dp, f"{unit}s", rollout_dies)
    divides("rollout.tensor_model_parallel_size", tp, f"{unit}s per host", recipe.cluster.dies_per_node)
    if ep not in (1, tp * dp):
        raise UserError(f"rollout.expert_parallel_size must be 1 or tensor x data parallel size = {tp * dp}, got {ep}")
    if model:
        divides("rollout.tensor_model_parallel_size", tp, "attention heads", model.heads)
        if ep > 1:
            divides("rollout.expert_parallel_size", ep, "experts", model.experts or 1)
    if train.backend == "megatron":
        size = train.tensor_parallel * train.pipeline_parallel * train.context_parallel
        divides("train.tensor x pipeline x context_parallel", size, f"{unit}s", dies)
        experts = train.expert_parallel * train.expert_tensor_parallel * train.pipeline_parallel
        divides("train.expert x expert_tensor x pipeline_parallel", experts, f"{unit}s", dies)
        if model:
            if train.expert_parallel > 1:
                divides("train.expert_parallel", train.expert_parallel, "experts", model.experts or 1)
            _check_stages(recipe, model)
        data_parallel = dies // size
    else:
        divides("train.sequence_parallel", train.sequence_parallel, f"{unit}s", dies)
        data_parallel = dies // train.sequence_parallel
        megatron_only = ("tensor", "pipeline", "context", "expert", "expert_tensor")
        for kind in megatron_only:
            if getattr(train, f"{kind}_parallel") != 1:
                raise UserError(
                    f"train.{kind}_parallel is Megatron's: leave it at 1 with train.backend {train.backend}"
                )
    answers = train.ppo_mini_batch_size * rollout.n
    divides("the training's data parallel size", data_parallel, "answers per mini batch", answers)
    divides(
        "train.ppo_mini_batch_size", train.ppo_mini_batch_size, "prompts per train batch", recipe.data.train_batch_size
    )


def _check_stages(recipe: Recipe, model: Shape) -> None:
    ends = [recipe.train.first_stage_layers, recipe.train.last_stage_layers]
    stages = recipe.train.pipeline_parallel - sum(end is not None for end in ends)
    left = model.layers - sum(end or 0 for end in ends)
    if stages < 0 or left < 0 or (left % stages if stages else left):
        raise UserError(
            f"{model.layers} layers cannot be split into {recipe.train.pipeline_parallel} pipeline stages: set "
            "train.first_stage_layers and train.last_stage_layers so that the other stages share the rest evenly"
        )


def rollout(recipe: Recipe, model: Shape, reserve: float = RESERVE) -> RolloutMemory:
    """Memory of an engine's device. The recipe must set cluster.die_memory.

    Dense weights are split by tensor parallelism, experts by expert parallelism.
    """
    assert recipe.cluster.die_memory is not None
    tp, ep = recipe.rollout.tensor_model_parallel_size, recipe.rollout.expert_parallel_size
    dense = model.parameters - model.expert_parameters
    weights = 2 * (dense / tp + model.expert_parameters / max(ep, tp)) / GIB
    budget = recipe.cluster.die_memory * recipe.rollout.gpu_memory_utilization
    of_groups = communicators.engine_memory(recipe)
    kv = budget - weights - max(reserve, of_groups + ACTIVATIONS)
    longest = recipe.sequence_length
    token, states = model.kv_bytes(tp) / GIB, model.state_bytes(tp, recipe.k) / GIB
    sequence = longest * token + states
    engines = recipe.rollout_dies // tp
    requests = -(-recipe.data.gen_batch_size * recipe.rollout.n // engines)
    return RolloutMemory(
        weights=weights,
        communicators=of_groups,
        pinned=_pinned(recipe, model),
        budget=budget,
        kv=kv,
        states=states,
        sequence=sequence,
        full_sequences=kv / sequence,
        mean_tokens=(kv / recipe.rollout.max_num_seqs - states) / token,
        requests=requests,
        waves=-(-requests // recipe.rollout.max_num_seqs),
    )


def _pinned(recipe: Recipe, model: Shape) -> float:
    """GiB of one block per matrix on a device, each rounded up to a power of two bytes as in torch_npu."""
    tp, ep = recipe.rollout.tensor_model_parallel_size, recipe.rollout.expert_parallel_size
    heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
    mlp = model.experts * model.mlp // max(ep, tp) if model.experts else model.mlp // tp
    of_layer = [(heads + 2 * kv_heads) * model.head_dim, heads * model.head_dim, 2 * mlp, mlp]
    rows = model.layers * of_layer + (1 if model.tied else 2) * [model.vocabulary // tp]
    return sum(1 << (2 * n * model.hidden - 1).bit_length() for n in rows) / GIB


def training(recipe: Recipe, model: Shape) -> TrainingMemory:
    """Memory of a device while it trains.

    FSDP shards all states in float32 over all devices. Megatron shards bf16 weights and fp32 gradients over tensor x
    pipeline (experts: expert x expert tensor x pipeline), and the distributed optimizer's 12 bytes per parameter also
    over data parallel devices. A reference model has the same weights; between passes FSDP always keeps them in host
    memory, Megatron if train.param_offload is set.
    """
    nodes, dies = recipe.cluster.nodes, recipe.cluster.dies
    if recipe.train.backend == "megatron":
        tp, pp, cp = (getattr(recipe.train, f"{kind}_parallel") for kind in ("tensor", "pipeline", "context"))
        expert_dies = recipe.train.expert_parallel * recipe.train.expert_tensor_parallel * pp
        dense = model.parameters - model.expert_parameters
        share = dense / (tp * pp) + model.expert_parameters / expert_dies
        weights, gradients = 2 * share, 4 * share
        optimizer = 12 * model.parameters / dies
        data_parallel, split, vocabulary = dies // (tp * pp * cp), cp, model.vocabulary // tp
    else:
        share = model.parameters / dies
        weights, gradients, optimizer = 4 * share, 4 * share, 8 * share
        split = recipe.train.sequence_parallel
        data_parallel, vocabulary = dies // split, model.vocabulary
    reference = weights / GIB if recipe.has_reference else 0.0
    off_dies = recipe.train.param_offload or recipe.train.backend != "megatron"
    answers = recipe.train.micro_batch_size or 1
    tokens = recipe.train.max_tokens_per_die or -(-recipe.sequence_length * answers // split)
    return TrainingMemory(
        data_parallel=data_parallel,
        weights=weights / GIB,
        gradients=gradients / GIB,
        optimizer=optimizer / GIB,
        logits=4 * tokens * vocabulary / GIB,
        communicators=communicators.trainer_memory(recipe),
        host=12 * model.parameters / nodes / GIB,
        reference=0.0 if off_dies else reference,
        reference_host=recipe.cluster.dies_per_node * reference if off_dies else 0.0,
    )


def report(recipe: Recipe, model: Shape | None) -> tuple[list[str], list[str]]:
    """The lines of the table, and warnings. Raises UserError if the recipe cannot run."""
    check_sizes(recipe, model)
    dies, dies_per_node, unit = recipe.cluster.dies, recipe.cluster.dies_per_node, recipe.cluster.unit
    tp, dp = recipe.rollout.tensor_model_parallel_size, recipe.rollout.data_parallel_size
    engines = f"{recipe.rollout_dies // tp} engines of TP {tp}, EP {recipe.rollout.expert_parallel_size}, DP {dp}"
    table = [(f"{unit}s", f"{dies} = {recipe.cluster.nodes} x {dies_per_node}")]
    if recipe.separate:
        hosts = recipe.cluster.rollout_nodes
        table += [(f"{unit}s that generate", f"{recipe.rollout_dies} = {hosts} x {dies_per_node}")]
    table += [("rollout", engines)]
    if model is None or recipe.cluster.die_memory is None:
        no_memory = recipe.cluster.die_memory is None
        reason = "cluster.die_memory is not set" if no_memory else why_unknown(Path(recipe.model.path))
        return _lines([*table, ("memory", f"not checked: {reason}")]), []
    roll, train = rollout(recipe, model), training(recipe, model)
    _check_memory(recipe, model, roll, train)
    return _lines([*table, *_rollout_rows(recipe, roll), *_training_rows(recipe, train, roll)]), _warnings(recipe, roll)


def _rollout_rows(recipe: Recipe, roll: RolloutMemory) -> list[tuple[str, str]]:
    per_host = recipe.cluster.dies_per_node
    asleep = f"{per_host * roll.weights:.0f} GiB per host while training, {per_host * roll.pinned:.0f} when pinned"
    kv = f"{roll.kv:.1f} of {roll.budget:.1f} GiB, after {RESERVE:g} GiB for communicators and activations"
    sequence = f"{roll.sequence:.2f} GiB for {recipe.sequence_length} tokens{' and states' * (roll.states > 0)}"
    return [
        (f"  weights per {recipe.cluster.unit}", f"{roll.weights:.1f} GiB"),
        *([("  weights asleep", asleep)] if recipe.keeps_weights_on_host else []),
        ("  KV cache", kv),
        *([("  states", f"{1024 * roll.states:.0f} MiB per request with k = {recipe.k}")] if roll.states else []),
        ("  full sequence", sequence),
        ("  full sequences that fit", f"{roll.full_sequences:.1f} of {recipe.rollout.max_num_seqs}"),
        ("  mean tokens that fit", f"{roll.mean_tokens:.0f} at {recipe.rollout.max_num_seqs} requests"),
        ("  requests per engine", f"{roll.requests} per round, in {roll.waves} wave{'s' * (roll.waves > 1)}"),
    ]


def _training_rows(recipe: Recipe, train: TrainingMemory, roll: RolloutMemory) -> list[tuple[str, str]]:
    unit = recipe.cluster.unit
    reference = f"{train.reference:.1f} GiB per {unit}; offloaded: {train.reference_host:.0f} GiB per host"
    groups = (
        f"{roll.communicators:.1f} GiB per {unit} for the engine's {len(communicators.engine_groups(recipe))}, "
        f"{train.communicators:.1f} for the trainer's {len(communicators.trainer_groups(recipe))}"
    )
    return [
        ("training", f"{recipe.train.backend}, data parallel {train.data_parallel}"),
        ("  weights, gradients", f"{train.weights:.1f} + {train.gradients:.1f} GiB per {unit}"),
        ("  optimizer", f"{train.optimizer:.1f} GiB per {unit}; offloaded: {train.host:.0f} GiB per host"),
        *([("  reference", reference)] if recipe.has_reference else []),
        ("  logits", f"{train.logits:.1f} GiB per copy in float32"),
        *([("communicators", groups)] if train.communicators or roll.communicators else []),
        ("  total", f"{train.total:.1f} of {recipe.cluster.die_memory:g} GiB, plus {RESERVE:g} for activations"),
    ]


def _check_memory(recipe: Recipe, model: Shape, roll: RolloutMemory, train: TrainingMemory) -> None:
    """Raise UserError unless rollout and training fit into the memory of a device."""
    unit, memory = recipe.cluster.unit, recipe.cluster.die_memory
    assert memory
    if roll.kv < roll.sequence:
        needed = roll.weights + RESERVE + roll.sequence
        spread = ": spread the experts over data-parallel ranks" if model.experts and roll.weights > roll.budget else ""
        raise UserError(
            f"the rollout does not fit: weights {roll.weights:.1f}, one full sequence {roll.sequence:.1f} and "
            f"{RESERVE:g} GiB for activations need {needed:.1f} GiB per {unit} of {roll.budget:.1f} allowed{spread}"
        )
    communicators.check(recipe, model)
    if train.total + RESERVE > memory:
        raise UserError(
            f"the training does not fit: it needs {train.total:.1f} GiB and {RESERVE:g} GiB for activations of "
            f"{memory:g} GiB per {unit}: use more {unit}s, or larger parallel sizes"
        )
    resident = train.communicators + (0.0 if recipe.train.param_offload else train.weights + train.gradients)
    resident += train.reference + (0.0 if recipe.train.optimizer_offload else train.optimizer)
    if resident + roll.budget > memory and not recipe.separate:
        raise UserError(
            f"rollout and training do not fit together: {resident:.1f} GiB of training state and communicators stay on "
            f"each {unit}, and the engine uses {roll.budget:.1f} of {memory:g} GiB: set train.param_offload and "
            "train.optimizer_offload"
        )


def _warnings(recipe: Recipe, roll: RolloutMemory) -> list[str]:
    warnings = [
        f"verl.{key} adds a model whose memory is not counted" for key in OTHER_MODELS if recipe.verl_keys.get(key)
    ]
    expected = recipe.rollout.expected_length
    if expected and roll.mean_tokens < expected and roll.requests > roll.full_sequences:
        warnings.append(
            f"the engine will preempt requests: {recipe.rollout.max_num_seqs} concurrent requests leave "
            f"{roll.mean_tokens:.0f} tokens for each, and {expected} are expected (rollout.expected_length)"
        )
    return warnings


def _lines(table: list[tuple[str, str]]) -> list[str]:
    return [f"{name:<26} {value}" for name, value in table]
