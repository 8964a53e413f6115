# SPDX-License-Identifier: Apache-2.0
"""What a draft model's trees look like: tokens that occur again (figure 3 of the GSD paper), and which child is accepted
(figures 7 and 8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from sam_lab.methods.draft_model import DraftModel, Node

GRAMS = (1, 2, 3, 4)


class Shapes(DraftModel):
    """A draft model that notes the shapes of its drafts.

    Attributes:
        repeated: by n, nodes that are part of an n-gram that stands on another branch too; 0: all nodes. Nodes that pruning
            takes away are left out.
        ranks: accepted tokens by the child's rank among its siblings, the most probable one being 1.
    """

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.repeated: Counter[int] = Counter()
        self.ranks: Counter[int] = Counter()

    def _walk(self, root: Node, tokens: Sequence[int]) -> list[int]:
        node = root
        for token in tokens[:-1]:
            siblings = node.continuations()
            rank = next((rank for rank, child in enumerate(siblings, 1) if child.token == token), None)
            if rank is None:
                break
            self.ranks[rank] += 1
            node = siblings[rank - 1]
        self.repeated += repeats(self._nodes(root))
        return super()._walk(root, tokens)

    def _nodes(self, root: Node) -> list[Node]:
        found, waiting = [], [root]
        while waiting:
            children = waiting.pop().children
            best = children[0].q if children else 0.0
            kept = [child for child in children if child.q >= self.theta_prob and child.q >= self.theta_sib * best]
            found += kept
            waiting += kept
        return found


def repeats(nodes: Sequence[Node]) -> Counter[int]:
    """`Shapes.repeated` of one draft."""
    counts: Counter[int] = Counter({0: len(nodes)})
    for n in GRAMS:
        grams = {id(node): node.last(n) for node in nodes}
        times = Counter(grams.values())
        marked = set()
        for node in nodes:
            gram = grams[id(node)]
            if gram is not None and times[gram] > 1:
                part = node
                for _ in gram:
                    marked.add(id(part))
                    part = part.above
        counts[n] = len(marked)
    return counts
