# SPDX-License-Identifier: Apache-2.0
"""Verification of a tree of drafts, greedy and sampled, both exact.

The target's own token is drawn at every node, from the target's distribution behind that node, and the walk from the
root goes down as long as a child bears the token drawn. The text that comes out is a chain of the target's own draws,
whatever was drafted: each token is drawn given exactly the tokens before it, and drafts decide only how many of them
one pass yields. So nothing has to be corrected for: neither the draft model's probabilities nor residuals are needed,
siblings may be any set of tokens, and a drafted token x is accepted with probability p(x), the target's. For drafts
that are a function of the text (all methods here: candidates of a draft model are its most probable tokens, not draws)
this is the most that a set of candidates can reach. What would be wrong is to ask of several candidates in turn whether
each alone would be accepted, and to accept the first that is: see tests/research/test_verify.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sam_core.noise import seeded_sample
from sam_core.seeds import request_key

from sam_lab.replay import Tree


class Greedy:
    """The most probable token at every node."""

    def __call__(self, logits: torch.Tensor, requests: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [B, T] from logits [B, T, V]."""
        return logits.argmax(-1)


class Sampled:
    """A draw at every node, by temperature and nucleus.

    Its noise depends on (seed, request, position in the text) alone, sam_core's seeded sampling: the nodes of one depth
    share it, and at most one of them is visited. So a request's text is also the same, token for token, whatever was
    drafted, up to the rounding of the forward pass.

    Raises ValueError unless temperature > 0 and 0 < top_p <= 1.
    """

    def __init__(self, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> None:
        if not temperature > 0 or not 0 < top_p <= 1:
            raise ValueError(
                f"temperature {temperature} and top_p {top_p}: they must be above 0, top_p also at most 1; "
                "for greedy decoding leave the temperature out"
            )
        self.temperature, self.top_p, self.seed = temperature, top_p, seed

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """float32 [N, V], rows that sum to 1. The nucleus: the fewest most probable tokens with top_p together."""
        probs = (logits.float() / self.temperature).softmax(-1)
        if self.top_p < 1:
            ordered, tokens = probs.sort(-1, descending=True)
            outside = ordered.cumsum(-1) - ordered >= self.top_p
            probs = probs.scatter(-1, tokens, ordered.masked_fill(outside, 0))
            probs /= probs.sum(-1, keepdim=True)
        return probs

    def __call__(self, logits: torch.Tensor, requests: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [B, T] from logits [B, T, V]; `positions` [B, T]: index in the text of the token drawn."""
        keys = [request_key((self.seed << 32) + request) for request in requests]
        keys = torch.tensor(keys, device=logits.device).unsqueeze(1).expand(positions.shape)
        probs, places = self.probabilities(logits.flatten(0, 1)), positions.to(logits.device).flatten()
        return seeded_sample(probs, keys.flatten(), places).view(positions.shape)


def walk(tree: Tree, drawn: Sequence[int]) -> tuple[list[int], list[int]]:
    """The nodes accepted, from the top, and the tokens emitted: theirs and the one drawn behind the last of them.

    drawn: the token drawn at the end of the text, then at each node of the tree, len(tree) + 1 of them.
    """
    tokens, parents = tree
    child: dict[tuple[int, int], int] = {}
    for node, place in enumerate(zip(parents, tokens, strict=True)):
        child.setdefault(place, node)
    accepted, emitted, node = [], [drawn[0]], -1
    while (node, emitted[-1]) in child:
        node = child[node, emitted[-1]]
        accepted.append(node)
        emitted.append(drawn[node + 1])
    return accepted, emitted
