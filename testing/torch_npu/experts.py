# SPDX-License-Identifier: Apache-2.0
"""Operators of a mixture of experts, in plain torch.

N tokens of D values, K experts a token, E experts, L of them on this rank, R ranks. Signatures and results are those of
the operators' documentation (Ascend Extension for PyTorch, torch_npu 2.7; dispatch_ffn_combine: csrc of vllm-ascend
0.23). What an operator leaves undefined is filled with UNDEFINED, which is wrong wherever it is used.
"""

from collections import Counter

import torch
import torch.distributed as dist

from .calls import counted
from .distributed import NAMED

UNDEFINED = 7.0
ROWS: Counter[int] = Counter()
"""Number of rows through each of this process's experts in all layers, by the expert's number on the rank."""


@counted
def npu_moe_gating_top_k_softmax(x, finished=None, k=1):
    """x [N, E]: (weights [N, K], experts int32 [N, K], rows int32 [N, K])."""
    assert finished is None
    weights, experts = x.softmax(-1).topk(k, -1)
    rows = torch.arange(x.shape[0] * k, dtype=torch.int32).view(k, -1).T
    return weights, experts.int(), rows


@counted
def moe_gating_top_k(x, k, renorm=0, routed_scaling_factor=1.0, k_group=1, group_count=1, **plain):
    """x [N, E]: (weights [N, K], experts int32 [N, K], None); renorm: the weights of a token add up to 1."""
    assert k_group == group_count == 1, (k_group, group_count)
    assert not any(plain.get(name) for name in ("norm_type", "out_flag")) and plain.get("bias_opt") is None, plain
    weights, experts = x.softmax(-1).topk(k, -1)
    if renorm:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routed_scaling_factor, experts.int(), None


def by_expert(experts):
    """experts [M]: (order int64 [M] of the entries by expert, place int32 [M] of each entry in it)."""
    order = experts.flatten().argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return order, place.int()


@counted
def npu_moe_init_routing_v2(x, expert_idx, *, active_num, expert_num, active_expert_range, scale=None, **form):
    """x [N, D], expert_idx int32 [N, K]: (rows [active_num, D] by expert, those of the experts in the range first; the
    row of each entry int32 [N K], -1 outside the range; rows of each expert int64 [L]; None)."""
    assert form["expert_tokens_num_type"] == 1 and form["expert_tokens_num_flag"], form
    assert form.get("quant_mode", -1) == -1 and not form.get("row_idx_type"), form
    first, end = active_expert_range
    assert 0 <= first < end <= expert_num and active_num == expert_idx.numel() and scale is None
    assert x.shape[0] == expert_idx.shape[0], (x.shape, expert_idx.shape)
    flat = expert_idx.flatten().long()
    inside = (first <= flat) & (flat < end)
    order, place = by_expert(torch.where(inside, flat, expert_num))
    rows = x[order // expert_idx.shape[1]]
    rows[inside.sum() :] = UNDEFINED
    counts = torch.bincount(flat[inside] - first, minlength=end - first)
    return rows, torch.where(inside, place, -1), counts, None


@counted
def npu_moe_token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """tokens [N, D], indices int [N, K] or [N]: (rows [N K, D] by expert, the row of each entry int32 [N K])."""
    assert not padded_mode and num_out_tokens in (None, indices.numel()) and len(tokens) == len(indices)
    order, place = by_expert(indices)
    return tokens[order // (indices.numel() // max(1, len(indices)))], place


@counted
def npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None):
    """permuted_tokens [M, D], sorted_indices int32 [N K], probs [N, K] or None for K = 1: [N, D], weighted sums."""
    assert not padded_mode and sorted_indices.dtype == torch.int32
    rows = permuted_tokens[sorted_indices.long()]
    if probs is None:
        return rows
    assert probs.numel() == sorted_indices.numel(), (probs.shape, sorted_indices.shape)
    return (rows.view(*probs.shape, -1) * probs[..., None].to(rows.dtype)).sum(1)


@counted
def npu_grouped_matmul(x, weight, *, split_item, group_type, group_list, group_list_type=0, bias=None):
    """x [[M, D]], weight [[L, D, F]], group_list int64 [L]: ends (type 0) or counts (1) of each expert's rows: [[M,
    F]]."""
    (x,), (weight,) = x, weight
    assert split_item == 2 and group_type == 0 and bias is None and group_list.dtype == torch.int64
    assert x.shape[1] == weight.shape[1] and len(group_list) == len(weight), (x.shape, weight.shape, group_list.shape)
    counts = group_list if group_list_type else group_list.diff(prepend=group_list.new_zeros(1))
    total = int(counts.sum())
    assert (counts >= 0).all() and total <= len(x), (counts, x.shape)
    out = x.new_full((len(x), weight.shape[2]), UNDEFINED)
    for expert, rows in enumerate(x[:total].split(counts.tolist())):
        ROWS[expert] += len(rows)
        start = int(counts[:expert].sum())
        out[start : start + len(rows)] = rows @ weight[expert]
    return [out]


class Exchange:
    """Rows that the ranks of a group send each other for their experts, and the way back.

    experts int [N, K]; active bool [N] or None: tokens that are sent. received: rows from each rank for each expert of
    this one, int64 [R, L].
    """

    def __init__(self, experts, active, num_experts, group):
        self.group, self.top_k = group, experts.shape[1]
        self.num_tokens, ranks = len(experts), dist.get_world_size(group)
        assert num_experts % ranks == 0
        flat = experts.flatten().long()
        if active is not None:
            assert active.shape == (self.num_tokens,) and active.dtype == torch.bool, (active.shape, experts.shape)
            flat = torch.where(active.repeat_interleave(self.top_k), flat, num_experts)
        order, _ = by_expert(flat)
        self.entries = order[: int((flat < num_experts).sum())]
        sent = torch.bincount(flat, minlength=num_experts)[:num_experts].view(ranks, -1)
        sizes = torch.cat((sent, torch.full((ranks, 1), self.num_tokens)), 1)
        answer = torch.empty_like(sizes)
        dist.all_to_all_single(answer, sizes, group=group)
        assert (answer[:, -1] == self.num_tokens).all(), f"ranks have different numbers of tokens: {answer[:, -1]}"
        self.sent, self.received = sent.sum(1).tolist(), answer[:, :-1]

    def order(self):
        """For each row ordered by expert and then rank, its place in the order by rank and then expert: int64 [M]."""
        local = torch.arange(self.received.shape[1]).repeat(len(self.received))
        return local.repeat_interleave(self.received.flatten()).argsort(stable=True)

    def there(self, x):
        rows = x[self.entries // self.top_k]
        out = x.new_empty(int(self.received.sum()), x.shape[1])
        dist.all_to_all_single(out, rows, self.received.sum(1).tolist(), self.sent, group=self.group)
        return out[self.order()]

    def back(self, rows, weights):
        by_rank = torch.empty_like(rows)
        by_rank[self.order()] = rows
        out = rows.new_empty(sum(self.sent), rows.shape[1])
        dist.all_to_all_single(out, by_rank, self.sent, self.received.sum(1).tolist(), group=self.group)
        total = rows.new_zeros(self.num_tokens, rows.shape[1])
        weights = weights.flatten()[self.entries, None].to(rows.dtype)
        return total.index_add_(0, self.entries // self.top_k, out * weights)


def exchange_of(experts, active, *, moe_expert_num, group_ep, ep_world_size, ep_rank_id, **plain):
    """The exchange of a call of dispatch or combine; `plain`: options that are off."""
    group = NAMED[group_ep]
    assert (ep_world_size, ep_rank_id) == (dist.get_world_size(group), dist.get_rank(group)), (
        ep_world_size,
        ep_rank_id,
    )
    off = ("quant_mode", "comm_quant_mode", "comm_alg", "global_bs", "expert_shard_type", "shared_expert_rank_num")
    assert not any(plain.get(name) for name in off) and plain.get("scales") is None, plain
    assert plain.get("tp_world_size", 0) in (0, 1), plain
    return Exchange(experts, active, moe_expert_num, group)


@counted
def npu_moe_distribute_dispatch_v2(x, expert_ids, *, x_active_mask=None, expert_token_nums_type=1, **options):
    """x [N, D], expert_ids int32 [N, K], x_active_mask bool [N]; N the same on each rank.

    Returns rows of this rank's experts [N R min(L, K), D] by expert, None, what combine needs int32 [same], rows of
    each expert int64 [L] (type 0: their ends), rows by expert and rank int32 [L R], int32 [1], float32 [1].
    """
    assert len(x) == len(expert_ids), (x.shape, expert_ids.shape)
    exchange = exchange_of(expert_ids, x_active_mask, **options)
    rows, counts = exchange.there(x), exchange.received.sum(0)
    out = x.new_full((len(x) * len(exchange.received) * min(len(counts), expert_ids.shape[1]), x.shape[1]), UNDEFINED)
    out[: len(rows)] = rows
    order = torch.full((len(out),), -1, dtype=torch.int32)
    order[: len(rows)] = exchange.order().int()
    nums = counts if expert_token_nums_type else counts.cumsum(0)
    received = exchange.received.T.flatten().int()
    return out, None, order, nums, received, torch.zeros(1, dtype=torch.int32), torch.zeros(1)


@counted
def npu_moe_distribute_combine_v2(
    expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales, *, x_active_mask=None, **options
):
    """expand_x: outputs for the rows of the dispatch; expert_scales float32 [N, K]: weighted sums [N, D]."""
    assert expert_scales.shape == expert_ids.shape and expert_scales.dtype == torch.float32
    exchange = exchange_of(expert_ids, x_active_mask, **options)
    order = exchange.order()
    assert (exchange.received.T.flatten() == ep_send_counts).all(), "combine is not of this dispatch"
    assert (assist_info_for_combine[: len(order)] == order).all(), "combine is not of this dispatch"
    return inactive(exchange.back(expand_x[: len(order)], expert_scales), x_active_mask)


def inactive(out, active):
    """Return `out` with UNDEFINED in the rows of inactive tokens."""
    return out if active is None else out.masked_fill_(~active[:, None], UNDEFINED)


@counted
def dispatch_ffn_combine(
    *, x, weight1, weight2, expert_idx, probs, group, max_output_size, x_active_mask, out, expert_token_nums, **plain
):
    """x [N, D], weight1 [[L, D, 2 F]], weight2 [[L, F, D]]; writes out [N, D] and expert_token_nums int32 [L]."""
    assert plain.pop("swiglu_limit") == 0 and all(len(empty[0]) == 0 for empty in plain.values()), plain
    group = NAMED[group]
    exchange = Exchange(expert_idx, x_active_mask, len(weight1[0]) * dist.get_world_size(group), group)
    rows, counts = exchange.there(x), exchange.received.sum(0)
    assert len(rows) <= max_output_size
    form = {"split_item": 2, "group_type": 0, "group_list": counts, "group_list_type": 1}
    (gate_up,) = npu_grouped_matmul.__wrapped__([rows], weight1, **form)
    gate, up = gate_up.chunk(2, -1)
    (down,) = npu_grouped_matmul.__wrapped__([torch.nn.functional.silu(gate) * up], weight2, **form)
    out.copy_(inactive(exchange.back(down, probs), x_active_mask))
    expert_token_nums.copy_(counts)


def install():
    """Register vllm-ascend 0.23's own operators where vllm-ascend looks for them."""
    for operator in (moe_gating_top_k, dispatch_ffn_combine):
        setattr(torch.ops._C_ascend, operator.__name__, operator)
    torch.ops._C_ascend.npu_moe_init_routing_custom = npu_moe_init_routing_v2
