# SPDX-License-Identifier: Apache-2.0
"""Drafts of a smaller model: chains (ssd), trees (tsd) and graphs (gsd), by Gong et al. 2024, "Graph-structured
speculative decoding", sections 3 to 5 and appendix A.

Every node that is expanded gets the draft model's `width` most probable tokens as children. A child that is improbable
(q < theta_prob), or much less probable than its best sibling (q < theta_sib * q of that one), stays a leaf. In a graph
a node whose last `tau` tokens stood before on another branch is redundant: it is not expanded either, and whatever
comes behind the first node with these tokens is its continuation too. For verification the graph is unfolded into a
tree again, so that each path has its own context in the target model.

The candidates are a function of the text, not draws from q, and the target's own token decides (see
research.verify): greedy and sampled texts are exactly the target's. The paper's sampled form compares p with q,
where merged nodes share one q that is not the draft model's for their path; that is not exact, and is not offered.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from research.settings import Settings
from research.tree_model import TreeModel
from sam_lab.replay import Tree

MAX_EXPANDED = 256
"""Nodes of one draft that go through the draft model."""


@dataclass
class Node:
    """A node of a draft.

    Attributes:
        q: the draft model's probability of the token.
        chance: product of q along the path.
        pending: number among the draft model's pending nodes, -1 if it was not expanded.
        same: the node whose continuation it shares.
    """

    token: int
    above: Node | None
    q: float
    chance: float
    depth: int
    children: list[Node] = field(default_factory=list)
    pending: int = -1
    same: Node | None = None

    def continuations(self) -> list[Node]:
        return (self.same or self).children

    def last(self, count: int) -> tuple[int, ...] | None:
        """The last tokens of the path inside the draft, the last first; None if there are fewer."""
        tokens: list[int] = []
        node = self
        while node.above is not None and len(tokens) < count:
            tokens.append(node.token)
            node = node.above
        return tuple(tokens) if len(tokens) == count else None

    def is_below(self, other: Node) -> bool:
        """Whether the other node is on the path to this one."""
        node: Node | None = self
        while node is not None and node is not other:
            node = node.above
        return node is not None


def unfold(root: Node, max_nodes: int, depth: int) -> Tree:
    """The tree of a graph: at most `max_nodes` nodes, the most probable paths, none deeper than `depth`."""
    tokens: list[int] = []
    parents: list[int] = []
    number = itertools.count()
    offers = [(-child.chance, next(number), child, -1, 1) for child in root.continuations()]
    heapq.heapify(offers)
    while offers and len(tokens) < max_nodes:
        chance, _, node, parent, level = heapq.heappop(offers)
        tokens.append(node.token)
        parents.append(parent)
        if level < depth:
            for child in node.continuations():
                heapq.heappush(offers, (chance * child.q, next(number), child, len(tokens) - 1, level + 1))
    return tokens, parents


@dataclass
class _Request:
    """The draft model's state of a request.

    Attributes:
        todo: tokens at the text's end that are not in the draft model's cache.
        root: of the draft whose outcome is not known yet.
        fed: tokens of `todo` among the pending nodes.
    """

    todo: list[int]
    root: Node | None = None
    fed: int = 0


class DraftModel:
    """A draft model as a drafter. width 1: chains; tau 0: trees; tau > 0: graphs.

    Attributes:
        counts: drafts; nodes (of graphs before they are unfolded), expanded (nodes that went through the draft model),
            merged (redundant nodes), grafted (drafts of which a token behind a merged node was accepted).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        width: int = Settings.width,
        depth: int = Settings.depth,
        theta_prob: float = Settings.theta_prob,
        theta_sib: float = Settings.theta_sib,
        tau: int = 0,
    ) -> None:
        self.width, self.depth, self.theta_prob, self.theta_sib, self.tau = width, depth, theta_prob, theta_sib, tau
        self._model = TreeModel(model)
        self._rows: list[int] = []
        self._requests: dict[int, _Request] = {}
        self._prompts: dict[int, Sequence[int]] = {}
        self.counts: Counter[str] = Counter(drafts=0, nodes=0, expanded=0, merged=0, grafted=0)

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self._prompts[request] = prompt_ids

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        if self._prompts:
            self._model.add([prompt[:-1] for prompt in self._prompts.values()])
            self._rows += self._prompts
            self._requests |= {request: _Request([prompt[-1]]) for request, prompt in self._prompts.items()}
            self._prompts = {}
        drafting = set(requests)
        feed: list[Tree] = []
        frontier: list[list[tuple[Node, int]]] = []  # of each row: nodes to expand, and their places among those fed
        roots: dict[int, Node] = {}
        firsts: list[dict[tuple[int, ...], Node]] = [{} for _ in self._rows]
        for request in self._rows:
            state = self._requests[request]
            if request not in drafting:
                feed.append(([], []))
                frontier.append([])
                continue
            state.fed = len(state.todo)
            feed.append((state.todo, range(-1, state.fed - 1)))
            roots[request] = state.root = Node(state.todo[-1], None, 1.0, 1.0, 0, pending=state.fed - 1)
            frontier.append([(roots[request], state.fed - 1)])
            self.counts["drafts"] += 1
        expanded = [1] * len(self._rows)
        while any(frontier):
            logits = self._model.forward(feed)
            best = logits.softmax(-1).topk(self.width)
            values, tokens = best.values.tolist(), best.indices.tolist()
            for row, nodes in enumerate(frontier):
                known = self._model.pending(row)
                going: list[Node] = []
                for node, place in nodes:
                    for q, token in zip(values[row][place], tokens[row][place], strict=True):
                        child = Node(token, node, q, node.chance * q, node.depth + 1)
                        node.children.append(child)
                        promising = q >= self.theta_prob and q >= self.theta_sib * values[row][place][0]
                        if promising and not self.merge(child, firsts[row]):
                            going.append(child)
                    self.counts["nodes"] += len(node.children)
                if going and (going[0].depth == self.depth or expanded[row] + len(going) > MAX_EXPANDED):
                    going = []
                expanded[row] += len(going)
                self.counts["expanded"] += len(going)
                for i, node in enumerate(going):
                    node.pending = known + i
                frontier[row] = [(node, i) for i, node in enumerate(going)]
                feed[row] = ([node.token for node in going], [node.above.pending for node in going if node.above])
        return [unfold(roots[request], n, self.depth) for request in requests]

    def merge(self, node: Node, firsts: dict[tuple[int, ...], Node]) -> bool:
        """Merge a redundant node with the first node of its last tokens; False where the node itself is the first.

        A first occurrence on the node's own path does not count: an edge back would make the graph cyclic.
        """
        gram = node.last(self.tau) if self.tau else None
        if gram is None:
            return False
        first = firsts.setdefault(gram, node)
        if first is node or node.is_below(first):
            return False
        node.same = first
        self.counts["merged"] += 1
        return True

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        emitted = dict(zip(requests, rows, strict=True))
        for request in self._prompts.keys() & emitted.keys():  # had no draft yet
            self._prompts[request] = [*self._prompts[request], *emitted[request]]
        kept: list[list[int]] = []
        for request in self._rows:
            state, tokens = self._requests[request], emitted.get(request, ())
            if state.root is None:
                state.todo = [*state.todo, *tokens]
                kept.append([])
                continue
            path = [*range(state.fed), *self._walk(state.root, tokens)]
            state.todo = list(tokens[len(path) - state.fed :])
            state.root = None
            kept.append(path)
        self._model.commit(kept)

    def _walk(self, root: Node, tokens: Sequence[int]) -> list[int]:
        """Pending nodes of the emitted tokens but the last, as far as they went through the draft model here."""
        path: list[int] = []
        node, on_path, grafted = root, True, False
        for token in tokens[:-1]:
            child = next((child for child in node.continuations() if child.token == token), None)
            if child is None:
                break
            grafted |= node.same is not None
            on_path &= node.same is None and child.pending >= 0
            if on_path:
                path.append(child.pending)
            node = child
        self.counts["grafted"] += grafted
        return path

    def finish(self, request: int) -> None:
        if request in self._prompts:
            del self._prompts[request]
            return
        row = self._rows.index(request)
        del self._rows[row], self._requests[request]
        self._model.select([other for other in range(len(self._rows) + 1) if other != row])
