# SPDX-License-Identifier: Apache-2.0
"""Operators other than attention, in plain torch. N is the number of tokens of a step."""

import sys

import torch

from .calls import counted


def npu_format_cast(x, acl_format):
    """Return the tensor unchanged: the stand-in has only one layout."""
    return x


@counted
def npu_rms_norm(x, gamma, epsilon=1e-6):
    """x [..., D] float, gamma [D]: (normalized x, reciprocal standard deviation [..., 1] float32)."""
    assert gamma.shape == x.shape[-1:], (x.shape, gamma.shape)
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * rstd).to(x.dtype) * gamma, rstd


@counted
def npu_add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    """x1, x2 [N, D]: (normalized sum, reciprocal standard deviation, sum)."""
    assert x1.shape == x2.shape and x1.dtype == x2.dtype, (x1.shape, x2.shape, x1.dtype, x2.dtype)
    total = x1 + x2
    return *npu_rms_norm(total, gamma, epsilon), total


@counted
def npu_swiglu(x, dim=-1):
    """x [N, 2 D]: [N, D]."""
    assert x.shape[dim] % 2 == 0, x.shape
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def rotate(x, cos, sin):
    """x [..., D], cos and sin broadcastable to [..., D / 2]: halves rotated against each other (neox style)."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@counted
def _npu_rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox_style=True):
    """positions int[N]; query, key [N, heads * head_size], changed in place; cos_sin_cache [length, head_size]."""
    n = positions.numel()
    assert is_neox_style and query.shape[0] == key.shape[0] == n, (query.shape, key.shape, n)
    assert cos_sin_cache.shape[-1] == head_size, (cos_sin_cache.shape, head_size)
    assert query.dtype == key.dtype == cos_sin_cache.dtype, (query.dtype, key.dtype, cos_sin_cache.dtype)
    cos, sin = cos_sin_cache[positions.flatten().long(), None].chunk(2, -1)
    for x in (query, key):
        x.copy_(rotate(x.view(n, -1, head_size), cos, sin).view(x.shape))


@counted
def npu_apply_rotary_pos_emb(query, key, cos, sin):
    """query, key [1, N, heads, D], changed in place and returned; cos, sin [1, N, 1, D], halves alike."""
    n, size = query.shape[1], query.shape[-1]
    assert key.shape[1] == n and cos.shape == sin.shape == (1, n, 1, size), (query.shape, key.shape, cos.shape)
    for x in (query, key):
        x.copy_(rotate(x, cos[..., : size // 2], sin[..., : size // 2]))
    return query, key


@counted
def npu_top_k_top_p(logits, p, k):
    """logits [B, V], p float[B] or None, k int[B] or None: logits with excluded tokens set to -inf."""
    rows = logits.shape[0]
    assert all(bound is None or bound.shape == (rows,) for bound in (p, k)), (logits.shape, p, k)
    values, order = logits.sort(-1)
    if k is not None:
        least = values.gather(1, values.shape[1] - k.long()[:, None])
        values = values.masked_fill(values < least, float("-inf"))
    if p is not None:
        drop = values.softmax(-1).cumsum(-1) <= 1 - p[:, None]
        drop[:, -1] = False
        values = values.masked_fill(drop, float("-inf"))
    return torch.empty_like(values).scatter_(-1, order, values)


@counted
def _npu_matmul_add_fp32(x, weight, c):
    """c [D, E] float32 += x [N, D]^T @ weight [N, E]."""
    return c.add_(x.float().T @ weight.float())


class SlotMappingKernel:
    """vLLM 0.23's Triton kernel that gives each token its slot in the KV cache, which has no fallback in torch.

    Called as kernel[(R + 1,)](...) for R requests: positions int[N], query_start_loc int[>= R + 1] with N at R.
    """

    def __getitem__(self, grid):
        @counted
        def _compute_slot_mapping_kernel(
            num_tokens,
            max_num_tokens,
            query_start_loc,
            positions,
            block_table,
            stride,
            block_size,
            slot_mapping,
            **fixed,
        ):
            starts = query_start_loc[: grid[0]].tolist()
            assert fixed["TOTAL_CP_WORLD_SIZE"] == 1, "context parallelism is not in the stand-in"
            assert starts[-1] <= num_tokens <= max_num_tokens, (starts, num_tokens, max_num_tokens)
            sizes = torch.tensor(starts).diff()
            request = torch.arange(len(sizes)).repeat_interleave(sizes)
            place = positions[: starts[-1]].long()
            blocks = block_table[request, place // block_size].long()
            slot_mapping[: starts[-1]] = blocks * block_size + place % block_size
            slot_mapping[num_tokens:max_num_tokens] = fixed["PAD_ID"]

        return _compute_slot_mapping_kernel


def install_slots():
    """Install the kernel once the worker has imported everything. vllm-ascend 0.11 maps slots in NumPy instead."""
    for name in ("vllm.v1.worker.block_table", "vllm_ascend.worker.block_table"):
        if hasattr(sys.modules.get(name), "_compute_slot_mapping_kernel"):
            sys.modules[name]._compute_slot_mapping_kernel = SlotMappingKernel()
