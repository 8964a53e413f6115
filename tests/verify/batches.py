# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for ragged batches of drafts."""

from dataclasses import dataclass

import hypothesis.strategies as st
import torch
from sam_core.noise import Noise
from sam_core.seeds import request_key

MAX_K = 8


def keys_of(seeds):
    return torch.tensor([request_key(seed) for seed in seeds])


def seeded_sample(probs, keys, positions):
    """Return a token sampled from each row of `probs` by its key and position."""
    return Noise(keys.numpy(), positions.numpy(), None, "cpu").sample(probs)


@dataclass
class Batch:
    counts: list[int]
    drafts: torch.Tensor  # [N]
    probs: torch.Tensor  # [R, V]: each request has a row per draft token and one more
    is_greedy: torch.Tensor
    uniform: torch.Tensor  # [R]
    q: torch.Tensor  # [B, V]

    @property
    def k(self):
        return max(self.counts)


def mask(probs, kind, generator):
    """Return `probs` after a top-k or top-p filter with a random limit for each row."""
    if kind == "none":
        return probs
    ordered, ids = probs.sort(1, descending=True)
    if kind == "top_k":
        kept = torch.arange(probs.shape[1]) < torch.randint(1, 5, (probs.shape[0], 1), generator=generator)
    else:
        kept = ordered.cumsum(1) - ordered < torch.rand(probs.shape[0], 1, generator=generator)
    probs = torch.zeros_like(probs).scatter_(1, ids, ordered * kept)
    return probs / probs.sum(1, keepdim=True)


@st.composite
def batches(draw):
    """Draw a step: with requests without drafts, greedy requests, drafts that must or cannot be accepted, masks and
    temperatures."""
    counts = draw(st.lists(st.integers(0, MAX_K), min_size=1, max_size=8).filter(any))
    vocabulary = draw(st.sampled_from([2, 5, 40, 128, 200]))
    temperature = draw(st.sampled_from([1e-5, 0.05, 0.3, 1.0, 50.0]))
    aim = draw(st.sampled_from(["any", "best", "worst"]))
    uniform_kind = draw(st.sampled_from(["any", "zero", "equal"]))
    masked = draw(st.sampled_from(["none", "top_k", "top_p"]))
    greedy = draw(st.sampled_from([0.0, 0.4, 1.0]))
    ids = draw(st.sampled_from([torch.int32, torch.int64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    rows = sum(counts) + len(counts)
    probs = mask((torch.randn(rows, vocabulary, generator=generator) / temperature).softmax(1), masked, generator)
    drafts = torch.randint(0, vocabulary, (sum(counts),), generator=generator)
    uniform = torch.rand(rows, dtype=torch.float64, generator=generator)
    is_greedy = torch.rand(len(counts), generator=generator) < greedy
    q = torch.empty(len(counts), vocabulary).exponential_(generator=generator)
    batch = Batch(counts, drafts.to(ids), probs, is_greedy, uniform, q)
    of_drafts = torch.cat([torch.arange(count + 1) < count for count in counts])
    if aim != "any":
        batch.drafts = (probs.argmax(1) if aim == "best" else probs.argmin(1))[of_drafts].to(ids)
    if uniform_kind == "zero":
        uniform.zero_()
    elif uniform_kind == "equal":  # equal to the draft token's probability
        uniform[of_drafts] = probs[of_drafts].gather(1, batch.drafts[:, None].long()).squeeze(1).double()
    return batch
