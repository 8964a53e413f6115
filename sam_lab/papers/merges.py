# SPDX-License-Identifier: Apache-2.0
"""What merging does to the draft model's distributions (table 5 of the GSD paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sam_lab.methods import Tree
from sam_lab.methods.draft_model import DraftModel, Node
from sam_lab.methods.tree_model import TreeModel


class Merges(DraftModel):
    """Graphs, with a record of what was merged.

    Attributes:
        merged: (text, path, first) of each merged node: the text that was drafted for, the tokens of the node's own path
            behind it, and those of the path to the node that it was merged with.
    """

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.merged: list[tuple[list[int], list[int], list[int]]] = []
        self._texts: dict[int, list[int]] = {}
        self._new: list[Node] = []

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        super().start(request, prompt_ids, group)
        self._texts[request] = list(prompt_ids)

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        super().append_many(requests, rows)
        for request, row in zip(requests, rows, strict=True):
            self._texts[request] += row

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        (request,) = requests  # so that the merged nodes are this request's
        self._new = []
        trees = super().propose_tree_many(requests, n)
        text = list(self._texts[request])
        self.merged += [(text, _path(node), _path(node.same)) for node in self._new]
        return trees

    def merge(self, node: Node, firsts: dict[tuple[int, ...], Node]) -> bool:
        if super().merge(node, firsts):
            self._new.append(node)
            return True
        return False


def _path(node: Node) -> list[int]:
    tokens = []
    while node.above is not None:
        tokens.append(node.token)
        node = node.above
    return tokens[::-1]


@torch.inference_mode()
def divergence(
    model: torch.nn.Module, text: Sequence[int], pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[float]:
    """KL(separate || shared) of each pair, in nats: of the next token behind text + separate and behind text + shared."""
    tokens: list[int] = []
    parents: list[int] = []
    ends = []
    for path in (path for pair in pairs for path in pair):
        parents += [-1, *range(len(tokens), len(tokens) + len(path) - 1)]
        tokens += path
        ends.append(len(tokens) - 1)
    fed = TreeModel(model)
    fed.add([text])
    logs = fed.forward([(tokens, parents)])[0, ends].double().log_softmax(-1)
    separate, shared = logs[0::2], logs[1::2]
    return (separate.exp() * (separate - shared)).sum(-1).tolist()
