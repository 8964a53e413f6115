# SPDX-License-Identifier: Apache-2.0
"""Attention and its KV cache, one request at a time in plain torch.

N query tokens of R requests; cache [blocks, block_size, kv_heads, D], or [blocks, block_size, kv_heads * D].
Row counts are asserted, so that a batch that is laid out for another operator raises.
"""

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

from .calls import counted
from .graphs import writes_only


def attend(query, key, value, scale):
    """query [n, heads, D], the last n of the m tokens of key, value [m, kv_heads, D]; causal. Returns [n, heads, D]."""
    n, m = query.shape[0], key.shape[0]
    assert m >= n, f"{n} queries over {m} keys"
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    heads = (each.float().transpose(0, 1)[None] for each in (query, key, value))
    out = scaled_dot_product_attention(*heads, attn_mask=seen, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)


def fill(rows, used):
    """Return whether a batch has the rows that its requests use, or more rows because ranks pad to the largest one."""
    group = getattr(sys.modules.get("vllm.distributed.parallel_state"), "_DP", None)
    return rows == used or (rows > used and group is not None and group.world_size > 1)


def cached(cache, blocks, length, kv_heads):
    """The first `length` tokens of a request whose block table is the list `blocks`: [length, kv_heads, D]."""
    used = -(-length // cache.shape[1])
    assert used <= len(blocks), f"{length} tokens in {len(blocks)} blocks of {cache.shape[1]}"
    tokens = cache[blocks[0]] if used == 1 else torch.cat([cache[block] for block in blocks[:used]])
    return tokens[:length].view(length, kv_heads, -1)


@writes_only
@counted
def _npu_reshape_and_cache(key, value, key_cache, value_cache, slot_indices):
    """Put key, value [N, kv_heads, D] into their slots int[N]; a negative slot is padding."""
    n = slot_indices.shape[0]
    assert key.shape == value.shape and key.shape[0] == n, (key.shape, value.shape, n)
    kept = slot_indices >= 0
    slots = slot_indices[kept].long()
    assert slots.unique().numel() == slots.numel(), "two tokens share a slot"
    key_cache.view(-1, *key.shape[1:])[slots] = key[kept]
    value_cache.view(-1, *value.shape[1:])[slots] = value[kept]


@counted
def _npu_flash_attention(query, key, value, mask, seq_len, scale_value, num_heads, num_kv_heads, out):
    """Prefill of whole prompts: seq_len int[R], its sum N (`fill`); out [N, heads, D]."""
    lengths = seq_len.tolist()
    n = sum(lengths)
    assert query.shape[0] == key.shape[0] == value.shape[0] <= out.shape[0], (query.shape, key.shape, out.shape)
    assert fill(len(query), n), (lengths, query.shape)
    assert query.shape[1] == num_heads and key.shape[1] == num_kv_heads, (query.shape, key.shape)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        out[rows] = attend(query[rows], key[rows], value[rows], scale_value).view(out[rows].shape)
        start += length
    return out


@counted
def _npu_paged_attention(
    query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens, out
):
    """Decode, one query token a request: context_lens int[N] (`fill`), block_table [N, blocks]."""
    assert fill(len(query), len(context_lens)), (query.shape, context_lens)
    assert fill(len(block_table), len(context_lens)), (block_table.shape, context_lens)
    for i, (blocks, length) in enumerate(zip(block_table.tolist(), context_lens.tolist(), strict=False)):
        key, value = (cached(cache, blocks, length, num_kv_heads) for cache in (key_cache, value_cache))
        out[i] = attend(query[i : i + 1], key, value, scale_value)[0].view(out[i].shape)
    return out


@counted
def npu_fused_infer_attention_score(
    query, key, value, *, actual_seq_lengths, actual_seq_lengths_kv, block_table, scale, **form
):
    """Chunked prefill, decode and verification of drafts in one: query [N, heads, D].

    actual_seq_lengths: R ends of the requests' query rows, the last N; actual_seq_lengths_kv: R lengths with them.
    Without a block table it is prefill of whole prompts: key, value [N, kv_heads, D] and the same ends for both.
    """
    ends, lengths, kv_heads = list(actual_seq_lengths), list(actual_seq_lengths_kv), form["num_key_value_heads"]
    assert (form["input_layout"], form["sparse_mode"]) == ("TND", 3), form
    assert query.shape[:2] == (ends[-1], form["num_heads"]), (query.shape, ends)
    requests = [slice(*bounds) for bounds in zip([0, *ends[:-1]], ends, strict=True)]
    if block_table is None:
        assert ends == lengths, (ends, lengths)
        assert key.shape[:2] == value.shape[:2] == (len(query), kv_heads), (query.shape, key.shape)
        return torch.cat([attend(query[rows], key[rows], value[rows], scale) for rows in requests]), None
    assert len(ends) == len(lengths) == len(block_table), (ends, lengths, block_table.shape)
    assert key.shape[1] == form["block_size"], (key.shape, form)
    out = torch.zeros_like(query)  # zeros for a request that pads a graph
    for blocks, rows, length in zip(block_table.tolist(), requests, lengths, strict=True):
        if length:
            keys, values = (cached(cache, blocks, length, kv_heads) for cache in (key, value))
            out[rows] = attend(query[rows], keys, values, scale)
    return out, None


@writes_only
@counted
def fused_into(*, out, workspace, pre_tokens, next_tokens, **arguments):
    """npu_fused_infer_attention_score into out[0], any shape of N * heads * D values; what graphs call."""
    found, _ = npu_fused_infer_attention_score(**arguments)
    out[0].view(found.shape).copy_(found)


npu_fused_infer_attention_score.out = fused_into


def _npu_fused_infer_attention_score_get_max_workspace(**arguments):
    return torch.empty(0)
