# SPDX-License-Identifier: Apache-2.0
"""The ways to speculate that are compared, as drafters of a rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.proposer import SamProposer
from sam_core.switch import AutoSwitch

from sam_lab import arms, suffix_device
from sam_lab.arms import Arm
from sam_lab.cli import LabError
from sam_lab.evidence.devices import Device
from sam_lab.evidence.rollout import EngineStep, column
from sam_lab.recordings import Answer

Int32 = npt.NDArray[np.int32]

PARAMETERS: dict[str, dict[str, float]] = {
    "ngram": {"min": 2, "max": 5},
    "suffix": {"depth": 24, "factor": 1.0, "min_prob": 0.1},
    suffix_device.NAME: {"depth": suffix_device.DEPTH},
    "oldest": {},
    "batch": {"min_prob": 0.1},
    "auto": {},
    "model": {},
    "model+ngram": {"min": 2, "max": 5},
    "model+length": {"threshold": 4},
    "model+suffix": {"depth": 64, "factor": 1.0, "min_prob": 0.1, "threshold": 3},
    "model+auto": {},
}
"""Those of each method with their defaults. PEERS are vLLM's, oldest is the article's rule (oldest occurrence, own
text), batch is sam_core's default rule and sources. vLLM's names: prompt_lookup_min and
prompt_lookup_max; suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob.
model is a drafter of the model's own; with it, the texts' draft replaces the model's: +ngram (vllm#24344) if there is
one, +length (TensorRT-LLM) if the longest match has at least `threshold` tokens, +suffix (ArcticInference) if suffix
decoding's score is at least `threshold`, +auto as the plugin does."""
PEERS = ("ngram", "suffix", suffix_device.NAME)
"""Those of vLLM. The first two are its code and need packages and sources."""
CLOCKED = ("auto", "model+auto", suffix_device.NAME)
"""Those whose drafts depend on what steps take."""
FORMS = [
    f"{method}{parameters}:{k}"
    for method in PARAMETERS
    for parameters in ("", "[NAME=VALUE]")[: 1 + bool(PARAMETERS[method])]
    for k in ("K", "K/K/K/K")[: 2 - (method in CLOCKED)]
]


def parse(name: str) -> Arm:
    """The arm of a name, with the defaults of its parameters."""
    arm = arms.parse(name, FORMS)
    if unknown := arm.parameters.keys() - PARAMETERS[arm.method].keys():
        raise LabError(f"arm {name!r} has no parameter {min(unknown)}: choose from {', '.join(PARAMETERS[arm.method])}")
    return arm._replace(parameters=PARAMETERS[arm.method] | arm.parameters)


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


def make(name: str, clock: Callable[[], float], model: Any = None, device: Device | None = None) -> Any:
    """A new drafter; `auto` times steps with `clock`. Raises LabError where vLLM's methods are not installed.

    model: the simulated ModelDrafter of methods that have one. device: whose costs suffix-device knows; None: it
    verifies all that it drafts.
    """
    from sam_lab.evidence.model import Alone, Best, Either, Longest

    arm = parse(name)
    method, _, texts = arm.method.partition("+")
    sam: dict[str, Any] = {"switch": "batch", "threshold": 1 << 20, **arm.parameters}
    match texts or method:
        case "model":
            return Alone(arm, model)
        case "auto":
            return Best(arm, model, clock) if texts else Sam(arm, {"switch": "auto"}, clock)
        case "oldest":
            return Sam(arm, sam | {"rule": "oldest", "sources": ["request"]}, clock)
        case "batch":
            return Sam(arm, sam, clock)
        case suffix_device.NAME:
            return SuffixDevice(arm, device)
    makers: dict[str, Callable[[Arm], Any]] = {"ngram": Ngram, "suffix": Suffix, "length": Longest}
    drafter = makers[texts or method](arm)
    return Either(arm, model, drafter) if texts else drafter


class Sam:
    """`sam_core.proposer.SamProposer`, as an engine calls it."""

    passes = 0

    def __init__(
        self,
        arm: Arm,
        sam: dict[str, Any],
        clock: Callable[[], float],
        proposer: type[SamProposer] = SamProposer,
    ) -> None:
        self.arm = arm
        self.groups: Sequence[str] = ()
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
        """Answers of an earlier epoch become history."""
        pool = self.proposer.texts.pool
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
        drafts = self.proposer.propose(self._names, self._rows, lengths, self._prompts, may_draft, num_tokens)
        most = self.arm.k(len(active))
        return drafts if most == max(self.arm.lengths) else [draft[:most] for draft in drafts]

    def finish(self, ended: list[int]) -> None:
        self.proposer.finish([f"{i}-{self.rollouts}" for i in ended])


class Ngram:
    """vLLM's n-gram proposer; its ngram_gpu drafts the same tokens."""

    passes = 0

    def __init__(self, arm: Arm) -> None:
        from sam_lab.bench.peers.ngram import ngram_proposer

        self.arm = arm
        shortest, longest = (int(arm.parameters[name]) for name in ("min", "max"))
        self.proposer = ngram_proposer(max(arm.lengths), 1, shortest, longest)

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.table = table

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        most = self.arm.k(len(active))
        self.strengths = [0.0] * len(active)
        if not most:
            return [[]] * len(active)
        sampled = [[0] if may else [] for may in may_draft]
        rows = self.table[active] if len(active) < len(self.table) else self.table
        return [draft[:most] for draft in self.proposer.propose(sampled, lengths, rows)]

    def finish(self, ended: list[int]) -> None:
        """It keeps nothing."""


class Suffix:
    """arctic-inference's cache, called as vLLM's suffix decoding calls it."""

    passes = 0

    CACHED_REQUESTS = 10_000

    def __init__(self, arm: Arm) -> None:
        from sam_lab.bench.peers.arctic import arctic

        self.arm, self.depth = arm, int(arm.parameters["depth"])
        self.cache = arctic()(max_tree_depth=self.depth, max_cached_requests=self.CACHED_REQUESTS)
        self.rollouts = 0

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.table, self.prompts = table, prompts
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


class SuffixDevice:
    """vLLM's suffix decoding on the second runner with adaptive verification.

    Each step has the budget of draft tokens with the most expected tokens per second. vLLM computes its budget from the
    probabilities of the previous step and the costs that it measured without drafts at its start; here both are exact.
    """

    passes = 0

    def __init__(self, arm: Arm, device: Device | None) -> None:
        self.arm, self.device = arm, device
        self.method = suffix_device.SuffixDevice(int(arm.parameters["depth"]), suffix_device.Corpus())
        self.acceptance = suffix_device.Acceptance(max(arm.lengths))

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.table, self.prompts = table, prompts
        self.lengths = np.zeros(len(table), np.int64)
        self.pending: dict[int, tuple[suffix_device.Draft, int]] = {}

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

    def _budget(self, drafts: Sequence[suffix_device.Draft], lengths: Int32) -> list[int]:
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
