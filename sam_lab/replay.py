# SPDX-License-Identifier: Apache-2.0
"""Replay of recorded answers: how many tokens per step a drafter would have gained.

Each step drafts, accepts the longest path that equals the recorded continuation, and emits it and one more token; the
first step drafts from the prompt alone. This is greedy verification by exact match. Tokens per step are the answers'
tokens divided by the steps they took.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sam_lab.recordings import Scope

Tree = tuple[Sequence[int], Sequence[int]]
"""Tokens and parents of nodes, parents first; parent -1 is the end of the text."""
Counts = dict[str, list[int]]
"""Two sums per prompt, such as tokens and steps; `quotient` divides the first by the second."""
RESAMPLES = 2000


class Drafter(Protocol):
    """The interface of a drafter in a replay. The caller numbers the requests.

    It may also have `drop(group)`, called when a group's last request has ended, and `settle()`, called after each
    answer that is not scored.
    """

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        """A request begins. Requests of a group may see each other's texts; with group None nothing is shared."""

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """Append the tokens that each request has emitted."""

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        """A chain of at most k tokens for each request."""

    def finish(self, request: int) -> None:
        """The request has ended; its text stays visible to its group."""


class OneByOne:
    """Base of a Drafter whose class has `append` and `propose` for one request."""

    def append(self, request: int, tokens: Sequence[int]) -> None:
        raise NotImplementedError

    def propose(self, request: int, k: int) -> list[int]:
        raise NotImplementedError

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            self.append(request, row)

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        return [self.propose(request, k) for request in requests]


class TreeDrafter(OneByOne):
    """A Drafter of trees instead of chains.

    texts: the text of each open request.
    """

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self.texts[request] = list(prompt_ids)

    def append(self, request: int, tokens: Sequence[int]) -> None:
        self.texts[request] += tokens

    def finish(self, request: int) -> None:
        del self.texts[request]

    def propose_tree(self, request: int, n: int) -> Tree:
        """A tree of at most n nodes."""
        raise NotImplementedError


def accept_chain(draft: Sequence[int], target: Sequence[int], at: int) -> int:
    """Number of leading tokens of a draft that equal target[at:]."""
    accepted = 0
    for token, expected in zip(draft, target[at : at + len(draft)], strict=False):
        if token != expected:
            break
        accepted += 1
    return accepted


def accept_tree(tokens: Sequence[int], parents: Sequence[int], target: Sequence[int], at: int) -> int:
    """The length of the longest path from the root of a tree that equals target[at:] from its beginning."""
    nodes = [*enumerate(zip(tokens, parents, strict=True))]
    child = {(parent, token): node for node, (token, parent) in reversed(nodes)}
    node, accepted = -1, 0
    while at + accepted < len(target) and (node, target[at + accepted]) in child:
        node, accepted = child[node, target[at + accepted]], accepted + 1
    return accepted


class _Request:
    __slots__ = ("at", "number", "prompt_id", "response", "scope")

    def __init__(self, number: int, response: list[int], prompt_id: str, scope: int) -> None:
        self.number, self.response, self.prompt_id, self.scope, self.at = number, response, prompt_id, scope, 0

    @property
    def has_ended(self) -> bool:
        return self.at >= len(self.response)


class _Tally:
    """Sums over the steps of one configuration."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.proposed = self.accepted = self.requests = 0
        self.draft_s = self.append_s = 0.0

    def add(self, proposed: int, accepted: int, tokens: int) -> None:
        self.steps += 1
        self.tokens += tokens
        self.proposed += proposed
        self.accepted += accepted

    def figures(self) -> dict[str, Any]:
        steps, tokens = max(self.steps, 1), max(self.tokens, 1)
        return {
            "tokens_per_step": round(self.tokens / steps, 4),
            "proposed_per_step": round(self.proposed / steps, 3),
            "precision": round(self.accepted / max(self.proposed, 1), 4),
            "accepted": self.accepted,
            "proposed": self.proposed,
            "steps": self.steps,
            "tokens": self.tokens,
            "requests": self.requests,
            "us_propose": round(1e6 * self.draft_s / steps, 2),
            "us_append_per_token": round(1e6 * self.append_s / tokens, 3),
        }


class _Replay:
    """Starts the requests of one configuration and advances them in batches; arguments as for `replay`."""

    def __init__(
        self,
        drafter: Drafter,
        context: str,
        k: int,
        progress: Callable[[int], None],
        by_prompt: Counts | None,
    ) -> None:
        self.drafter, self.k, self.progress, self.by_prompt = drafter, k, progress, by_prompt
        self.has_groups = context != "request"
        self.tally = _Tally()
        self.unfinished: dict[int, int] = {}  # by scope

    def starts(self, scopes: Sequence[Scope], one_by_one: bool) -> Iterator[list[_Request]]:
        """Start the requests of one scope after another; yields those that start together."""
        numbers = itertools.count()
        for number, scope in enumerate(scopes):
            group = f"g{number}" if self.has_groups else None
            scored = []
            for answer, is_scored in scope:
                request = _Request(next(numbers), answer.response_ids.tolist(), answer.prompt_id, number)
                if is_scored:
                    scored.append((request, answer.prompt_ids))
                    continue
                self.drafter.start(request.number, answer.prompt_ids, group)
                self.drafter.append_many([request.number], [request.response])
                self.drafter.finish(request.number)
                if hasattr(self.drafter, "settle"):
                    self.drafter.settle()
            self.unfinished[number] = len(scored)
            for starting in [[one] for one in scored] if one_by_one else [scored]:
                for request, prompt in starting:
                    self.drafter.start(request.number, prompt, group)
                self.tally.requests += len(starting)
                yield [request for request, _ in starting]

    def step(self, batch: list[_Request]) -> list[_Request]:
        """Draft for all, then append to all; return those that go on."""
        rows = [self._verify(request, *draft) for request, draft in zip(batch, self._draft(batch), strict=True)]
        start = time.perf_counter()
        self.drafter.append_many([request.number for request in batch], rows)
        self.tally.append_s += time.perf_counter() - start
        for request in batch:
            if request.has_ended:
                self.drafter.finish(request.number)
                self.unfinished[request.scope] -= 1
        for scope in [scope for scope, count in self.unfinished.items() if not count]:
            del self.unfinished[scope]
            if self.has_groups and hasattr(self.drafter, "drop"):
                self.drafter.drop(f"g{scope}")
            self.progress(self.tally.tokens)
        return [request for request in batch if not request.has_ended]

    def _draft(self, batch: list[_Request]) -> Sequence[tuple[Sequence[int], Sequence[int] | None]]:
        """Tokens and parents of each draft; parents None: a chain."""
        start = time.perf_counter()
        if isinstance(self.drafter, TreeDrafter):
            trees = [self.drafter.propose_tree(request.number, self.k) for request in batch]
            self.tally.draft_s += time.perf_counter() - start
            return trees
        chains = self.drafter.propose_many([request.number for request in batch], self.k)
        self.tally.draft_s += time.perf_counter() - start
        return [(tokens, None) for tokens in chains]

    def _verify(self, request: _Request, tokens: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        """The tokens that the request gets: accepted ones and the bonus token."""
        if len(tokens) > self.k:
            raise ValueError(f"the drafter returned {len(tokens)} tokens where at most {self.k} were asked for")
        target, at = request.response, request.at
        accepted = accept_chain(tokens, target, at) if parents is None else accept_tree(tokens, parents, target, at)
        row = target[at : at + accepted + 1]
        self.tally.add(len(tokens), accepted, len(row))
        request.at += len(row)
        if self.by_prompt is not None:
            sums = self.by_prompt.setdefault(request.prompt_id, [0, 0])
            sums[0] += len(row)
            sums[1] += 1
        return row


def replay(
    drafter: Drafter,
    scopes: Sequence[Scope],
    context: str,
    k: int,
    progress: Callable[[int], None] = lambda tokens: None,
    by_prompt: Counts | None = None,
    running: int = 1,
) -> dict[str, Any]:
    """Run one configuration and return its figures.

    Args:
        drafter: a new Drafter.
        scopes: from `make_scopes`, for this context.
        context: one of recordings.CONTEXTS.
        k: maximum tokens of a chain, or nodes of a tree.
        progress: called after each scope with the tokens replayed so far.
        by_prompt: where each prompt's tokens and steps are added.
        running: start further scopes while fewer requests run; more than 1: all requests of a scope start together.

    Returns:
        tokens_per_step, proposed_per_step (drafted tokens per step), precision (accepted of the drafted tokens),
        accepted, proposed, steps, tokens, requests, us_propose (us per step) and us_append_per_token (microseconds).
    """
    run = _Replay(drafter, context, k, progress, by_prompt)
    waiting = run.starts(scopes, one_by_one=running == 1 and context in ("request", "sequential"))
    batch: list[_Request] = []
    while True:
        while len(batch) < running and (started := next(waiting, None)):
            batch += started
        if not batch:
            break
        batch = run.step(batch)
    return run.tally.figures()


def quotient(counts: Counts, others: Counts | None = None) -> float | None:
    """The quotient of the sums over all prompts, or the ratio of two such quotients; None if it is not a number."""
    (value,) = _quotients(counts, others, np.arange(len(counts))[None])
    return float(value) if np.isfinite(value) else None


def interval(counts: Counts, others: Counts | None = None) -> list[float] | None:
    """The 95 % interval of `quotient` by bootstrap over prompts; None for fewer than two, or if a draw is not a number.

    Both quotients use the same drawn prompts.
    """
    size = len(counts)
    if size < 2:
        return None
    values = _quotients(counts, others, np.random.default_rng(0).integers(size, size=(RESAMPLES, size)))
    return np.quantile(values, (0.025, 0.975)).tolist() if np.isfinite(values).all() else None


def _quotients(counts: Counts, others: Counts | None, drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """`quotient` of each row of `drawn`, which holds indices of prompts."""
    prompts, found = sorted(counts), []
    with np.errstate(divide="ignore", invalid="ignore"):
        for of in (counts,) if others is None else (counts, others):
            sums = np.array([of[prompt] for prompt in prompts], np.float64)[drawn].sum(axis=1)
            found.append(sums[:, 0] / sums[:, 1])
        return found[0] if others is None else found[0] / found[1]


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; 0 if one of them is 0."""
    return math.exp(sum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0
