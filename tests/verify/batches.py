# SPDX-License-Identifier: Apache-2.0
"""Ragged batches of drafts, as hypothesis draws them."""

from dataclasses import dataclass

import hypothesis.strategies as st
import torch

MAX_K = 8


@dataclass
class Batch:
    counts: list[int]
    ends: torch.Tensor
    drafts: torch.Tensor
    draft_probs: torch.Tensor | None
    target_probs: torch.Tensor
    bonus: torch.Tensor
    is_greedy: torch.Tensor
    uniform: torch.Tensor
    q: torch.Tensor

    @property
    def k(self):
        return max(self.counts)

    @property
    def vocabulary(self):
        return self.target_probs.shape[1]


def mask(probs, kind, generator):
    """Set to 0 what a top-k or a top-p filter leaves out, by row."""
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
    """Any step: requests without drafts, greedy ones, drafts that cannot be accepted or must be, masks, temperatures."""
    counts = draw(st.lists(st.integers(0, MAX_K), min_size=1, max_size=8))
    vocabulary = draw(st.sampled_from([2, 5, 40, 128, 200]))
    temperature = draw(st.sampled_from([1e-5, 0.05, 0.3, 1.0, 50.0]))
    aim = draw(st.sampled_from(["any", "best", "worst"]))
    uniform_kind = draw(st.sampled_from(["any", "zero", "equal"]))
    masked = draw(st.sampled_from(["none", "top_k", "top_p"]))
    with_draft_probs = draw(st.booleans())
    greedy = draw(st.sampled_from([0.0, 0.4, 1.0]))
    ids = draw(st.sampled_from([torch.int32, torch.int64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    tokens = sum(counts)
    logits = torch.randn(tokens, vocabulary, generator=generator)
    target = mask((logits / temperature).softmax(1), masked, generator)
    drafts = torch.randint(0, vocabulary, (tokens,), generator=generator)
    if tokens and aim != "any":
        drafts = target.argmax(1) if aim == "best" else target.argmin(1)
    draft_probs = None
    if with_draft_probs:
        draft_probs = (2 * torch.randn(tokens, vocabulary, generator=generator)).softmax(1)
        hidden = torch.rand(tokens, 1, generator=generator) < 0.2
        draft_probs.scatter_(1, drafts[:, None], torch.where(hidden, 0, draft_probs.gather(1, drafts[:, None])))
    uniform = torch.rand(tokens, dtype=torch.float64, generator=generator)
    if uniform_kind == "zero":
        uniform.zero_()
    elif uniform_kind == "equal":  # of the draft's own probability
        uniform = target.gather(1, drafts[:, None]).squeeze(1).double()
    return Batch(
        counts,
        torch.tensor(counts).cumsum(0).to(ids),
        drafts.to(ids),
        draft_probs,
        target,
        torch.randint(0, vocabulary, (len(counts), 1), generator=generator).to(ids),
        torch.rand(len(counts), generator=generator) < greedy,
        uniform,
        torch.empty(len(counts), vocabulary).exponential_(generator=generator),
    )
