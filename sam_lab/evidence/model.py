# SPDX-License-Identifier: Apache-2.0
"""A simulated drafter of the model's own (EAGLE-3, MTP), and the ways to draft with it and from texts.

For each position of an answer, the number of right tokens in the drafter's draft is drawn once, so all arms see the
same drafter. The acceptance rates are published ones; the numbers may correlate with how far the texts' draft is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sam_core.budget import Calibration
from sam_core.engines.vllm.passes import Passes
from sam_core.proposer import SamProposer, Step

from sam_core import Pool
from sam_core import device_drafts as table
from sam_lab.arms import Arm, parse
from sam_lab.completion import extend
from sam_lab.evidence.drafters import Sam
from sam_lab.evidence.rollout import RolloutDrafter, roll_out
from sam_lab.recordings import Answer

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


class Kind(NamedTuple):
    """A drafter of the model's own.

    accepted: share of its drafts of which the first 1, 2, ... tokens are accepted.
    share: time of a pass, as a share of a plain step.
    """

    title: str
    accepted: tuple[float, ...]
    share: float


KINDS = {
    "eagle3": Kind("EAGLE-3", (0.70, 0.47, 0.31), 0.10),
    "mtp": Kind("MTP", (0.912, 0.782, 0.667), 0.12),
}
"""Acceptance: vllm-ascend's golden values of Qwen3-8B's EAGLE-3 (its #15174; the third by the ratio of the first two);
a log of vLLM 0.20 with Qwen3.6-27B's MTP (club-3090 #105; DeepSeek-V3's report has 0.85 to 0.9 for the first).
Passes: EAGLE-3's tenth of Qwen3-8B is assumed (vLLM's #16937: at most 0.16), MTP reads one layer and the head of 36
layers and the head."""


class ModelDrafter:
    """The simulated drafter.

    Args:
        correlation: share of positions at which it has the rank of the texts' draft: Spearman's correlation.
    """

    SEED = 24

    def __init__(self, kind: Kind, correlation: float = 0.0) -> None:
        self.kind, self.correlation = kind, correlation
        self.rollouts = 0

    @property
    def longest(self) -> int:
        return len(self.kind.accepted)

    def begin(self, answers: Sequence[Answer], found: Int32 | None = None) -> None:
        """Draw the numbers for these answers. found: the result of `found_by_texts`; None: no correlation."""
        texts = [[*answer.prompt_ids, *answer.response_ids] for answer in answers]
        shape = len(texts), max(map(len, texts)) + self.longest + 1
        self.table = np.zeros(shape, np.int32)
        for row, text in zip(self.table, texts, strict=True):
            row[: len(text)] = text
        rng = np.random.default_rng([self.SEED, self.rollouts])
        self.rollouts += 1
        rank = rng.random(shape, np.float32)
        if found is not None and self.correlation:
            follows = (found >= 0) & (rng.random(found.shape, np.float32) < self.correlation)
            rank[:, : found.shape[1]][follows] = ranks(found, rng)[follows]
        self.right = (rank[..., None] < np.array(self.kind.accepted, np.float32)).sum(-1, dtype=np.int8)
        place = (rng.random(shape, np.float32) * np.arange(shape[1])).astype(np.int32)
        self.wrong = np.take_along_axis(self.table, place, 1)
        self.wrong += self.wrong == self.table

    def draft(self, rows: Sequence[int], lengths: Int32) -> Int32:
        """The drafts [B, longest] after the first `lengths` tokens of these rows."""
        index, ahead = np.array(rows)[:, None], np.arange(self.longest)
        places = lengths[:, None] + ahead
        is_right = ahead < self.right[index, lengths[:, None]]
        return np.where(is_right, self.table[index, places], self.wrong[index, places])


def ranks(found: Int32, rng: np.random.Generator) -> Float32:
    """The rank of each number among those that are not negative: 0 is the highest; ties are in random order."""
    counts = np.bincount(found[found >= 0])
    above = np.cumsum(counts[::-1])[::-1] - counts
    place = above[found] + rng.random(found.shape) * counts[found]
    return np.minimum(place / counts.sum(), np.float32(1 - 1e-7)).astype(np.float32)


def found_by_texts(answers: Sequence[Answer], running: int, longest: int) -> Int32:
    """For each position of each text, how many tokens of a draft of at most `longest` from the texts are right in plain
    decoding; -1 if nothing is drafted there."""
    notes = _Notes(longest)
    roll_out(answers, notes, running)
    return notes.found


class _Notes(Sam):
    """Drafts nothing, and records how many tokens would have been right."""

    def __init__(self, longest: int) -> None:
        super().__init__(parse(f"batch:{longest}"), {"switch": "batch", "threshold": 1 << 20}, lambda: 0.0)
        self.longest = longest

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        super().begin(table, prompts, groups)
        self.texts = np.pad(table, ((0, 0), (0, self.longest)), constant_values=-1)
        self.found: Int32 = np.full(table.shape, -1, np.int32)

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        drafts = super().draft(active, lengths, may_draft, num_tokens)
        padded = np.array([draft + [-2] * (self.longest - len(draft)) for draft in drafts])
        index = np.array(active)
        same = padded == np.take_along_axis(self.texts[index], lengths[:, None] + np.arange(self.longest), 1)
        right = np.where(may_draft, np.logical_and.accumulate(same, 1).sum(1), -1)
        inside = lengths < self.found.shape[1]
        self.found[index[inside], lengths[inside]] = right[inside]
        return [[] for _ in active]


class Longest(RolloutDrafter):
    """Drafts the tokens after the newest occurrence of the longest match in the texts of the request and its group."""

    def __init__(self, arm: Arm) -> None:
        super().__init__(arm)
        self.pool = Pool(rule="newest", sources=("request", "group"))

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        super().begin(table, prompts, groups)
        self.slots = np.full(len(table), -1, np.int32)
        self.fed = prompts.copy()

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        for i in active:
            if self.slots[i] < 0:
                self.slots[i] = self.pool.open(self.table[i, : self.prompts[i]], self.groups[i].encode())
        k = max(1, max(self.arm.lengths))
        out, found = np.empty((len(active), k), np.int32), np.empty(len(active), np.int32)
        matches = np.zeros((len(active), k), np.int32)
        starts, limits = self.fed[active], np.array(may_draft, np.int32) * self.arm.k(len(active))
        self.pool.step(
            self.slots[active],
            self.table[active],
            lengths - starts,
            limits.astype(np.int32),
            out,
            found,
            match_lengths=matches,
            starts=starts,
        )
        self.fed[active] = lengths
        self.strengths = matches[:, 0].tolist()
        return [row[:n] for row, n in zip(out.tolist(), found.tolist(), strict=True)]

    def finish(self, ended: list[int]) -> None:
        for i in ended:
            self.pool.close(int(self.slots[i]))


class Alone(RolloutDrafter):
    """Drafts with the model alone."""

    def __init__(self, arm: Arm, model: ModelDrafter) -> None:
        super().__init__(arm)
        self.model = model

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        k = self.arm.k(len(active))
        self.passes = min(k, self.model.longest)
        rows = self.model.draft(active, lengths)[:, :k].tolist()
        return [row if may else [] for row, may in zip(rows, may_draft, strict=True)]


class Either(Alone):
    """The texts' draft if its strength reaches the threshold, else the model's."""

    def __init__(self, arm: Arm, model: ModelDrafter, texts: RolloutDrafter) -> None:
        super().__init__(arm, model)
        self.texts, self.threshold = texts, arm.parameters.get("threshold", 0.0)

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        self.texts.begin(table, prompts, groups)

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        own = super().draft(active, lengths, may_draft, num_tokens)
        found = self.texts.draft(active, lengths, may_draft, num_tokens)
        takes = [bool(d) and s >= self.threshold for d, s in zip(found, self.texts.strengths, strict=True)]
        if all(takes):
            self.passes = 1
        return [draft if take else row for draft, take, row in zip(found, takes, own, strict=True)]

    def finish(self, ended: list[int]) -> None:
        self.texts.finish(ended)


class Best(Sam):
    """sam's `auto` with a model drafter, as in `sam_core.kernels`: each request gets the draft with more expected
    accepted tokens, either the texts' or the model's, which the texts continue."""

    proposer: _Proposer

    def __init__(self, arm: Arm, model: ModelDrafter, clock: Callable[[], float]) -> None:
        super().__init__(arm, {"switch": "auto"}, clock, _Proposer)
        self.model, self.chooser = model, Chooser(max(arm.lengths), model.longest)
        self.proposer.chooser = self.chooser

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        super().begin(table, prompts, groups)
        self.chooser.begin(table, groups)

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        chooser = self.chooser
        count = chooser.longest if chooser.wants_all else 1
        chooser.learn(active, lengths)
        chooser.model = self.model.draft(active, lengths)[:, :count]
        chooser.may = np.array(may_draft)
        self.proposer.drafts_now = False
        drafts = super().draft(active, lengths, may_draft, num_tokens)
        self.passes = count if self.proposer.drafts_now else 0
        chooser.note(active, lengths, drafts)
        return drafts


class _Proposer(SamProposer):
    chooser: Chooser
    drafts_now: bool

    def _draft(self, step: Step, may_draft: Any, should_draft: bool, *more: Any) -> list[list[int]]:
        self.drafts_now = should_draft
        return super()._draft(step, may_draft, should_draft, *more)

    def _select_drafts(
        self, step: Step, decoding: bool, out: Int32, guessed: Int32, scores: Float32, planned: bool
    ) -> list[list[int]]:
        if not self.drafts_now:
            return super()._select_drafts(step, decoding, out, guessed, scores, planned)
        return super()._select_drafts(step, decoding, *self.chooser.choose(step, out, guessed, scores), planned)


class Chooser:
    """Chooses each request's row and continues it by look-ups in a table of the texts.

    Args:
        k: maximum tokens of a draft. longest: maximum tokens of the model's draft.

    Attributes:
        wants_all: whether the later passes would have paid in the latest step that drafted.
    """

    SLOTS = TOKENS = 1 << 22

    def __init__(self, k: int, longest: int) -> None:
        self.k, self.longest = k, min(k, longest)
        self.table = table.NgramTable(self.TOKENS, self.SLOTS, 1 << 18)
        self.prior = table.class_priors()
        self.counts = np.zeros((2, table.NUM_CLASSES))
        self.passes, self.wants_all = Passes(self.longest), True
        self.groups: dict[str, int] = {}
        self.model: Int32
        self.may: npt.NDArray[np.bool_]

    def begin(self, texts: Int32, groups: Sequence[str]) -> None:
        self.texts = texts
        numbers = [self.groups.setdefault(group, table.COMMON + 1 + len(self.groups)) for group in groups]
        self.numbers = np.array(numbers, np.int32)
        self.pages, self.fed = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int32)
        self.lengths, self.drafted = np.zeros((2, len(texts)), np.int32)
        self.classes = np.zeros((len(texts), self.k), np.int64)

    def learn(self, active: list[int], lengths: Int32) -> None:
        """Feed a step that ended with these lengths, and count its draft tokens up to the first refused one."""
        accepted = lengths - self.lengths[active] - 1
        graded = np.minimum(self.drafted[active], accepted + 1)
        column, classes = np.arange(self.k), self.classes[active]
        self.counts *= Calibration.DECAY
        for count, n in zip(self.counts, (graded, np.minimum(accepted, graded)), strict=True):
            count += np.bincount(classes[column < n[:, None]], minlength=len(self.prior))
        self.drafted[active] = 0
        pages = self.pages[active]
        self.table.append(pages, self.numbers[active], self.texts[active], self.fed[active], lengths)
        self.pages[active], self.fed[active] = pages, lengths
        self.table.changes()

    def note(self, active: list[int], lengths: Int32, drafts: list[list[int]]) -> None:
        """Note the drafts that will be verified."""
        self.lengths[active], self.drafted[active] = lengths, [len(draft) for draft in drafts]
        if any(drafts):
            self.classes[active] = self.chosen

    def choose(self, step: Step, out: Int32, guessed: Int32, scores: Float32) -> tuple[Int32, Int32, Float32]:
        """Tokens, lengths and scores of each request's better draft; the arguments are those of the texts' draft."""
        rows, column = [int(name.partition("-")[0]) for name in step.req_ids], np.arange(self.k)
        probability = table.step_probabilities(scores)
        before = step.ends[:, None] + np.arange(-table.MAX_NGRAM, 0)
        last = np.where(before >= 0, np.take_along_axis(self.texts[rows], np.maximum(before, 0), 1), 0)
        bins = (probability * table.SCALE).astype(np.int64) * table.NUM_BINS // (table.SCALE + 1)
        classes = np.where(column < guessed[:, None], bins, table.FILLER)
        own = self._continued(rows, last, out, classes, guessed, probability)
        count = self.model.shape[1]
        is_model = column < count
        padded = np.pad(self.model, ((0, 0), (0, self.k - count)))
        agrees = (~is_model | ((column < own.lengths[:, None]) & (padded == own.tokens))).all(1)
        model = self._continued(
            rows,
            last,
            np.where(is_model, padded, own.tokens),
            np.where(is_model, table.MODEL + column, own.classes),
            np.where(agrees, own.lengths, count).astype(np.int32),
            probability,
        )
        expected, of_model = own.paths.sum(1), model.paths.sum(1)
        better = self.may & (of_model > expected)
        if count < self.longest:
            later = self._rates()[table.MODEL + count : table.MODEL + self.longest]
            full = model.paths[:, :count].sum(1) + model.paths[:, count - 1] * np.cumprod(later).sum()
        else:
            full = of_model
        one = of_model if count == 1 else model.paths[:, 0]
        with_one, with_all = (1 + np.maximum(expected, each)[self.may] for each in (one, full))
        self.wants_all = self.passes.choose(with_one.sum(), with_all.sum(), explores=False)
        tokens, self.chosen, paths = (
            np.where(better[:, None], of_model, of_texts)
            for of_model, of_texts in (
                (model.tokens, own.tokens),
                (model.classes, own.classes),
                (model.paths, own.paths),
            )
        )
        lengths = np.where(better, model.lengths, own.lengths)
        return tokens, np.where(self.may, lengths, 0).astype(np.int32), paths.astype(np.float32)

    def _rates(self) -> npt.NDArray[np.float64]:
        """Acceptance rate of each class."""
        verified, accepted = self.counts
        samples = Calibration.PRIOR_SAMPLES
        return np.asarray((accepted + samples * self.prior) / (verified + samples))

    def _continued(
        self, rows: list[int], last: Int32, tokens: Int32, classes: Any, lengths: Int32, probability: Float32
    ) -> Continued:
        """Return each draft, continued with the tokens that followed its last tokens."""
        text, classes, lengths = np.concatenate([last, tokens], 1), classes.copy(), lengths.copy()
        groups, limits = self.numbers[rows].astype(np.int64), np.full(len(rows), self.k)
        extend(self.table.memory, self.SLOTS, groups, text, classes, lengths, limits, self.k)
        classes[np.arange(self.k) >= lengths[:, None]] = table.FILLER
        own, prior = self._rates()[classes], self.prior[classes]
        fine = np.where(classes < table.NUM_BINS, own * probability / np.maximum(prior, 1e-6), own)
        paths = np.cumprod(np.clip(fine, 0, 1), 1)
        return Continued(text[:, table.MAX_NGRAM :], classes, lengths, paths)


class Continued(NamedTuple):
    """Drafts of B requests: tokens and classes [B, k], lengths [B], and the probability that each token is accepted,
    0 after the end."""

    tokens: Int32
    classes: npt.NDArray[np.int64]
    lengths: Int32
    paths: npt.NDArray[np.float64]
