# SPDX-License-Identifier: Apache-2.0
"""Device memory of HCCL's communicators, by the groups that trainer and engine communicate in.

Each communicator takes 2 x HCCL_BUFFSIZE of a die's memory, and 2 x P2P_HCCL_BUFFSIZE more if it also sends point to
point (environment variable references of CANN 9.0 and of Ascend Extension for PyTorch 7.1). HCCL creates it with the
group's first collective, and keeps it. Groups of one die have none.
"""

from __future__ import annotations

from llm_rl.errors import UserError
from llm_rl.recipe import Recipe
from llm_rl.shape import Shape

DEFAULT, POINT_TO_POINT = 200, 20
"""Defaults in MiB: of HCCL_BUFFSIZE in CANN, of P2P_HCCL_BUFFSIZE in torch_npu."""
ENGINE, ENGINE_DATA = 200, 50
"""MiB that vllm-ascend gives its groups, and those of data parallelism.

utils.py, get_hccl_config_for_pg_options.
"""
WINDOW, MAX_TOKENS = 11, 512
"""Limits of the operators that send tokens to experts: MiB, and tokens per die."""
MAX_GRAPH = 512
"""Tokens of the largest graph that vLLM captures by default, unless two steps have fewer tokens (config/vllm.py)."""


def buffer_size(recipe: Recipe) -> int:
    """HCCL_BUFFSIZE of a recipe, in MiB. Raises UserError."""
    value = str(recipe.env.get("HCCL_BUFFSIZE", DEFAULT))
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"HCCL_BUFFSIZE must be a whole number of MiB, got {value!r} (env.HCCL_BUFFSIZE)")
    return int(value)


def trainer_groups(recipe: Recipe) -> dict[str, int]:
    """Dies of each group of a trainer's rank, by name.

    Megatron's are those of megatron.core.parallel_state in which an update has a collective, and MindSpeed's second
    group of context parallelism (use_cp_send_recv_overlap); FSDP's those of verl's device meshes.
    """
    train, dies = recipe.train, recipe.cluster.dies
    if train.backend != "megatron":
        sizes = {"world": dies, "sequence": train.sequence_parallel, "data": dies // train.sequence_parallel}
        return _of_several(sizes)
    tp, pp, cp = train.tensor_parallel, train.pipeline_parallel, train.context_parallel
    ep, etp = train.expert_parallel, train.expert_tensor_parallel
    sizes = {"world": dies, "tensor": tp, "pipeline": pp, "context": cp, "context overlap": cp}
    sizes |= {"data and context": dies // (tp * pp), "tensor and pipeline": tp * pp}
    if ep > 1:
        sizes |= {"expert": ep, "expert tensor": etp, "expert and tensor": ep * etp, "tensor and context": tp * cp}
        sizes |= {"expert, tensor and pipeline": ep * etp * pp, "expert data": dies // (ep * etp * pp)}
    return _of_several(sizes)


def engine_groups(recipe: Recipe) -> dict[str, int]:
    """Dies of each group of an engine's rank, by name: vLLM's, and vllm-ascend's own for the dispatch to experts."""
    rollout = recipe.rollout
    tp, dp, ep = rollout.tensor_model_parallel_size, rollout.data_parallel_size, rollout.expert_parallel_size
    return _of_several({"world": tp * dp, "tensor": tp, "data": dp, "expert": ep, "dispatch": ep})


def _of_several(sizes: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size > 1}


def engine_memory(recipe: Recipe) -> float:
    """GiB of a die for the communicators of an engine."""
    if recipe.cluster.device != "npu":
        return 0.0
    sizes = {"data": ENGINE_DATA, "dispatch": buffer_size(recipe)}
    return sum(2 * sizes.get(name, ENGINE) for name in engine_groups(recipe)) / 1024


def trainer_memory(recipe: Recipe) -> float:
    """GiB of a die for the communicators of the trainer."""
    if recipe.cluster.device != "npu":
        return 0.0
    groups = trainer_groups(recipe)
    pairs = {"pipeline", "context", "context overlap"} & {*groups} if recipe.train.backend == "megatron" else ()
    return (2 * buffer_size(recipe) * len(groups) + 2 * POINT_TO_POINT * len(pairs)) / 1024


def dispatch_buffer(recipe: Recipe, model: Shape) -> int:
    """MiB of HCCL_BUFFSIZE that sending tokens to experts on other dies needs; 0 where each engine has all experts.

    The formula of npu_moe_distribute_dispatch and _combine on A3 (cann-recipes-infer, executor/utils/hccl_utils.py),
    for the largest number of tokens that vllm-ascend gives them (ascend_forward_context.py, set_mc2_tokens_capacity).
    """
    rollout = recipe.rollout
    ep = rollout.expert_parallel_size
    if ep == 1 or not model.experts or recipe.cluster.device != "npu":
        return 0

    def align(size: int, to: int) -> int:
        return -(-size // to) * to

    rows = rollout.max_num_seqs * (1 + recipe.sam_options["k"])
    if not rollout.enforce_eager:
        rows = max(rows, min(2 * rows, MAX_GRAPH))
    tokens = min(-(-rows // rollout.tensor_model_parallel_size), MAX_TOKENS)
    row = 2 * model.hidden
    dispatch = model.experts // ep * tokens * ep * align(align(row, 32) + 44, 512)
    combine = model.experts_per_token * tokens * align(row, 512)
    return -(-2 * (dispatch + combine) // 2**20) + WINDOW


def check(recipe: Recipe, model: Shape) -> None:
    """Raise UserError if the buffer is too small for the dispatch to experts."""
    size, needed = buffer_size(recipe), dispatch_buffer(recipe, model)
    if size < needed:
        raise UserError(
            f"HCCL_BUFFSIZE is {size} MiB, and sending {recipe.rollout.max_num_seqs} requests' tokens to the experts "
            f"of other dies needs {needed}: set env.HCCL_BUFFSIZE={needed}"
        )
