# SPDX-License-Identifier: Apache-2.0
"""The drafters of the compared arms: sam_core's proposer, and vLLM's methods without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.proposer import SamProposer
from sam_core.switch import AutoSwitch

from sam_lab import suffix_device
from sam_lab.arms import Arm
from sam_lab.evidence.devices import Device
from sam_lab.evidence.rollout import EngineStep, RolloutDrafter, column
from sam_lab.recordings import Answer

Int32 = npt.NDArray[np.int32]


class Sam(RolloutDrafter):
    """`sam_core.proposer.SamProposer`, as an engine calls it."""

    def __init__(
        self,
        arm: Arm,
        sam: dict[str, Any],
        clock: Callable[[], float],
        proposer: type[SamProposer] = SamProposer,
    ) -> None:
        super().__init__(arm)
        self.rollouts = 0
        self.proposer = proposer(
            max(arm.lengths),
            sam,
            max_model_len=1 << 30,
            group_of=lambda req_id: self.groups[int(req_id.partition("-")[0])].encode(),
        )
        if isinstance(self.proposer.switch, AutoSwitch):
            self.proposer.switch.clock = clock

    def remember(self, answers: Sequence[Answer]) -> None:
        """Add answers of an earlier epoch to the history."""
        pool = self.proposer.texts.pool
        slots = [pool.open(answer.prompt_ids, answer.group.encode()) for answer in answers]
        for slot, answer in zip(slots, answers, strict=True):
            pool.append(slot, np.array(answer.response_ids, np.int32))
        for slot in slots:
            pool.close(slot)

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        super().begin(table, prompts, groups)
        self.rollouts += 1
        self._active: list[int] = []

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        if active != self._active:
            self._active = active[:]
            self._rows, self._prompts = self.table[active], self.prompts[active]
            self._names = [f"{i}-{self.rollouts}" for i in active]
        drafts = self.proposer.propose(self._names, self._rows, lengths, self._prompts, may_draft, num_tokens)
        most = self.arm.k(len(active))
        return drafts if most == max(self.arm.lengths) else [draft[:most] for draft in drafts]

    def finish(self, ended: list[int]) -> None:
        self.proposer.finish([f"{i}-{self.rollouts}" for i in ended])


class Ngram(RolloutDrafter):
    """vLLM's n-gram proposer; its ngram_gpu drafts the same tokens."""

    def __init__(self, arm: Arm) -> None:
        from sam_lab.bench.peers.ngram import ngram_proposer

        super().__init__(arm)
        shortest, longest = (int(arm.parameters[name]) for name in ("min", "max"))
        self.proposer = ngram_proposer(max(arm.lengths), 1, shortest, longest)

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        most = self.arm.k(len(active))
        self.strengths = [0.0] * len(active)
        if not most:
            return [[]] * len(active)
        sampled = [[0] if may else [] for may in may_draft]
        rows = self.table[active] if len(active) < len(self.table) else self.table
        return [draft[:most] for draft in self.proposer.propose(sampled, lengths, rows)]


class Suffix(RolloutDrafter):
    """arctic-inference's cache, called as vLLM's suffix decoding calls it."""

    CACHED_REQUESTS = 10_000

    def __init__(self, arm: Arm) -> None:
        from sam_lab.bench.peers.arctic import arctic

        super().__init__(arm)
        self.depth = int(arm.parameters["depth"])
        self.cache = arctic()(max_tree_depth=self.depth, max_cached_requests=self.CACHED_REQUESTS)
        self.rollouts = 0

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        super().begin(table, prompts, groups)
        self.fed = np.zeros(len(table), np.int64)
        self.rollouts += 1

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        drafts: list[list[int]] = []
        most = self.arm.k(len(active))
        self.strengths = [0.0] * len(active)
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
            if not most:
                drafts.append([])
                continue
            pattern = self.table[i, max(0, length - self.depth) : length]
            found = self.cache.speculate(
                name,
                pattern,
                max_spec_tokens=most,
                max_spec_factor=self.arm.parameters["factor"],
                min_token_prob=self.arm.parameters["min_prob"],
            )
            self.strengths[len(drafts)] = found.score
            drafts.append(found.token_ids)
        return drafts

    def finish(self, ended: list[int]) -> None:
        for i in ended:
            if self.fed[i]:
                self.cache.stop_request(f"{i}-{self.rollouts}")


class AdaptiveSuffixDevice(RolloutDrafter):
    """vLLM's suffix decoding on the second runner with adaptive verification.

    Each step has the budget of draft tokens with the most expected tokens per second. vLLM computes its budget from the
    probabilities of the previous step and the costs that it measured without drafts at its start; here both are exact.
    """

    def __init__(self, arm: Arm, device: Device | None) -> None:
        super().__init__(arm)
        self.device = device
        self.method = suffix_device.SuffixDevice(int(arm.parameters["depth"]))
        self.acceptance = suffix_device.AcceptedByClass(max(arm.lengths))

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        super().begin(table, prompts, groups)
        self.lengths = np.zeros(len(table), np.int64)
        self.pending: dict[int, tuple[suffix_device.SuffixDraft, int]] = {}

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        for i, length in zip(active, lengths.tolist(), strict=True):
            if i in self.pending:
                draft, verified = self.pending.pop(i)
                self.acceptance.add(draft, verified, length - int(self.lengths[i]) - 1)
        self.acceptance.step()
        self.lengths[active] = lengths
        most = self.arm.k(len(active))
        may = [i for i, may in zip(active, may_draft, strict=True) if may and most]
        drafts = self.method.draft([self.table[i, : self.lengths[i]] for i in may], most)
        sizes = self._budget(drafts, lengths)
        self.pending = {i: (draft, n) for i, draft, n in zip(may, drafts, sizes, strict=True) if n}
        return [self.pending[i][0].tokens[: self.pending[i][1]] if i in self.pending else [] for i in active]

    def _budget(self, drafts: Sequence[suffix_device.SuffixDraft], lengths: Int32) -> list[int]:
        """Tokens of each draft that are verified in the next step, for requests with these numbers of tokens."""
        sizes = [len(draft.tokens) for draft in drafts]
        if not self.device or not any(sizes):
            return sizes
        gained = np.concatenate([np.cumprod(self.acceptance.probabilities(draft)) for draft in drafts])
        order = np.argsort(-gained, kind="stable")
        running, context, drafted = len(lengths), int(lengths.sum()), np.arange(len(order) + 1)
        steps = np.tile(np.array(EngineStep(running, running, 0, 0, context, 0, 0), np.int64), (len(drafted), 1))
        column(steps, "rows")[:] += drafted
        column(steps, "drafted")[:] = drafted
        column(steps, "draft_context")[:] = drafted * context // running
        expected = running + np.concatenate([[0.0], np.cumsum(gained[order])])
        budget = int(np.argmax(expected / self.device.seconds(steps)))
        chosen = np.repeat(np.arange(len(drafts)), sizes)[order[:budget]]
        return np.bincount(chosen, minlength=len(drafts)).tolist()

    def finish(self, ended: list[int]) -> None:
        for i in ended:
            self.method.end(self.table[i, : self.lengths[i]], int(self.prompts[i]))
            self.pending.pop(i, None)
