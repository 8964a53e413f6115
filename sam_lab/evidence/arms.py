# SPDX-License-Identifier: Apache-2.0
"""The ways to speculate that are compared, as drafters of a rollout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.options import MAX_AUTO_MIN_PROB
from sam_core.proposer import SamProposer
from sam_core.switch import AutoSwitch

from sam_lab.cli import LabError
from sam_lab.recordings import Answer

Int32 = npt.NDArray[np.int32]

METHODS = ("ngram", "suffix", "oldest", "batch", "wide")
"""vLLM's two, the article's rule (oldest occurrence, own text), sam_core's default rule and sources, and the same with
drafts as improbable as those of `auto` may be."""
PEERS = ("ngram", "suffix")
"""Those of vLLM, which need packages and sources."""
ARM = re.compile(r"(ngram|suffix|oldest|batch|wide):([1-9][0-9]*)(?::([1-9][0-9]*))?|auto:([1-9][0-9]*)")
ALWAYS = 1 << 20
"""Threshold of an arm that drafts in every step."""


def parse(arm: str) -> tuple[str, int, int]:
    """Method, k and threshold of METHOD:K[:THRESHOLD] or auto:K; raises LabError."""
    fixed = ARM.fullmatch(arm)
    if not fixed:
        raise LabError(f"unknown arm {arm!r}: write {', '.join(METHODS)}:K[:THRESHOLD] or auto:K")
    if fixed[4]:
        return "auto", int(fixed[4]), ALWAYS
    return fixed[1], int(fixed[2]), int(fixed[3] or ALWAYS)


def check(methods: Iterable[str]) -> None:
    """Raise LabError if one of these methods cannot run here."""
    for method in methods:
        try:
            make(f"{method}:1", lambda: 0.0)
        except LabError as error:
            raise LabError(
                f"{method} is {error}: run this in .venvs/bench, which ci/setup-env bench makes, or leave it out by "
                f"--without {method}"
            ) from None


def make(arm: str, clock: Callable[[], float]) -> Any:
    """A new drafter; `auto` times steps with `clock`. Raises LabError where vLLM's methods are not installed."""
    method, k, threshold = parse(arm)
    if method == "ngram":
        return Ngram(k, threshold)
    if method == "suffix":
        return Suffix(k, threshold)
    sam: dict[str, Any] = {"switch": "batch", "threshold": threshold}
    if method == "oldest":
        sam |= {"rule": "oldest", "sources": ["request"]}
    if method == "wide":
        sam |= {"min_prob": MAX_AUTO_MIN_PROB}
    if method == "auto":
        sam = {"switch": "auto"}
    return Sam(k, sam, clock)


class Sam:
    """`sam_core.proposer.SamProposer`, as an engine calls it."""

    def __init__(self, k: int, sam: dict[str, Any], clock: Callable[[], float]) -> None:
        self.groups: Sequence[str] = ()
        self.rollouts = 0
        self.proposer = SamProposer(
            k,
            sam,
            max_model_len=1 << 30,
            group_of=lambda req_id: self.groups[int(req_id.partition("-")[0])].encode(),
        )
        if isinstance(self.proposer.switch, AutoSwitch):
            self.proposer.switch.clock = clock

    def remember(self, answers: Sequence[Answer]) -> None:
        """Answers of an earlier epoch become history."""
        pool = self.proposer.pool
        slots = [pool.open(answer.prompt_ids, answer.group.encode()) for answer in answers]
        for slot, answer in zip(slots, answers, strict=True):
            pool.append(slot, np.array(answer.response_ids, np.int32))
        for slot in slots:
            pool.close(slot)

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.table, self.prompts, self.groups = table, prompts, groups
        self.rollouts += 1
        self._active: list[int] = []

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        if active != self._active:
            self._active = active[:]
            self._rows, self._prompts = self.table[active], self.prompts[active]
            self._names = [f"{i}-{self.rollouts}" for i in active]
        return self.proposer.propose(self._names, self._rows, lengths, self._prompts, may_draft, num_tokens)

    def finish(self, ended: list[int]) -> None:
        self.proposer.finish([f"{i}-{self.rollouts}" for i in ended])


class Ngram:
    """vLLM's n-gram proposer."""

    def __init__(self, k: int, threshold: int) -> None:
        from sam_lab.bench.peers.ngram import ngram_proposer

        self.threshold = threshold
        self.proposer = ngram_proposer(k, 1)

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.table = table

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        if len(active) > self.threshold:
            return [[]] * len(active)
        sampled = [[0] if may else [] for may in may_draft]
        return self.proposer.propose(
            sampled, lengths, self.table[active] if len(active) < len(self.table) else self.table
        )

    def finish(self, ended: list[int]) -> None:
        """It keeps nothing."""


class Suffix:
    """arctic-inference's cache, called as vLLM's suffix decoding calls it, with vLLM's defaults."""

    DEPTH, CACHED_REQUESTS, FACTOR, MIN_PROB = 24, 10_000, 1.0, 0.1

    def __init__(self, k: int, threshold: int) -> None:
        from sam_lab.bench.peers.arctic import arctic

        self.k, self.threshold = k, threshold
        self.cache = arctic()(max_tree_depth=self.DEPTH, max_cached_requests=self.CACHED_REQUESTS)
        self.rollouts = 0

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.table, self.prompts = table, prompts
        self.fed = np.zeros(len(table), np.int64)
        self.rollouts += 1

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        drafts: list[list[int]] = []
        for i, length, may in zip(active, lengths.tolist(), may_draft, strict=True):
            if not may:
                drafts.append([])
                continue
            name = f"{i}-{self.rollouts}"
            if not self.fed[i]:
                self.cache.start_request(name, self.table[i, : self.prompts[i]])
                self.fed[i] = self.prompts[i]
            self.cache.add_active_response(name, self.table[i, self.fed[i] : length].tolist())
            self.fed[i] = length
            if len(active) > self.threshold:
                drafts.append([])
                continue
            pattern = self.table[i, max(0, length - self.DEPTH) : length]
            drafts.append(
                self.cache.speculate(
                    name,
                    pattern,
                    max_spec_tokens=self.k,
                    max_spec_factor=self.FACTOR,
                    min_token_prob=self.MIN_PROB,
                ).token_ids
            )
        return drafts

    def finish(self, ended: list[int]) -> None:
        for i in ended:
            if self.fed[i]:
                self.cache.stop_request(f"{i}-{self.rollouts}")
