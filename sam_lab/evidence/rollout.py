# SPDX-License-Identifier: Apache-2.0
"""A rollout of recorded answers without a model: the steps that vLLM's scheduler would run, with exact acceptance.

A greedy answer is known, so a draft is accepted as far as it equals the answer, whatever the model. The time of a step
comes from a device's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sam_lab.arms import Arm
from sam_lab.recordings import Answer
from sam_lab.replay import accept_chain

Int32 = npt.NDArray[np.int32]

MAX_BATCHED_TOKENS = 8192
"""Maximum tokens per step, as vLLM's max_num_batched_tokens."""
FIELDS = ("running", "rows", "drafted", "emitted", "context", "draft_context", "prompt", "passes")


class EngineStep(NamedTuple):
    """One engine step.

    Attributes:
        running: number of requests.
        rows: computed tokens: prompt tokens, one per request that decodes, and draft tokens.
        drafted, emitted: draft tokens, and tokens that its requests got.
        context: sum over its requests of the tokens held before it. draft_context: the same sum over its draft tokens.
        prompt: prompt tokens that it reads.
        passes: passes of the model's own drafter for the drafts that it verifies.
    """

    running: int
    rows: int
    drafted: int
    emitted: int
    context: int
    draft_context: int
    prompt: int
    passes: int = 0


class Timeline(NamedTuple):
    """steps: int64 [steps, fields], FIELDS of each step. spans: int64 [N, 2], first and last step of each answer."""

    steps: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]


class RolloutDrafter:
    """Base of an arm's drafter in a rollout. Requests are rows of the table given to `begin`.

    passes: passes of the model's own drafter for the latest drafts.
    strengths: how good each of the latest drafts looks, for drafters that say so.
    """

    passes = 0
    strengths: list[float]

    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def begin(self, table: Int32, prompts: Int32, groups: Sequence[str]) -> None:
        """A rollout begins: prompts and answers int32 [N, width], prompt lengths [N], names of groups."""
        self.table, self.prompts, self.groups = table, prompts, groups

    def draft(self, active: list[int], lengths: Int32, may_draft: list[bool], num_tokens: int) -> list[list[int]]:
        """After a step of these B requests: feed them up to `lengths` tokens, and draft for the next step."""
        raise NotImplementedError

    def finish(self, ended: list[int]) -> None:
        """These requests ended in the latest step."""


def roll_out(
    answers: Sequence[Answer],
    drafter: RolloutDrafter | None,
    max_running: int,
    on_step: Callable[[EngineStep], None] = lambda step: None,
) -> Timeline:
    """Run all answers as one replica of a rollout does.

    Args:
        answers: all are requested at once, and admitted in order while fewer than `max_running` run.
        drafter: None: plain decoding.
        on_step: called with each step, before the drafter.
    """
    texts = [[*answer.prompt_ids, *answer.response_ids] for answer in answers]
    prompts = np.array([len(answer.prompt_ids) for answer in answers], np.int32)
    ends = np.array([len(text) for text in texts], np.int32)
    table = np.zeros((len(texts), int(ends.max())), np.int32)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = text
    if drafter:
        drafter.begin(table, prompts, [answer.group for answer in answers])
    known = np.zeros(len(texts), np.int64)  # tokens computed of a prompt that is being read, else all certain ones
    waiting = list(range(len(texts)))
    active: list[int] = []
    drafts: dict[int, list[int]] = {}
    passes = 0
    steps: list[EngineStep] = []
    spans = np.zeros((len(texts), 2), np.int64)
    while waiting or active:
        free = MAX_BATCHED_TOKENS - sum(1 + len(drafts.get(i, ())) for i in active if known[i] >= prompts[i])
        read: dict[int, int] = {}
        for i in active:
            if known[i] < prompts[i]:
                read[i] = min(int(prompts[i] - known[i]), free)
                free -= read[i]
        while waiting and len(active) < max_running and free > 0:
            i = waiting.pop(0)
            active.append(i)
            spans[i, 0] = len(steps)
            read[i] = min(int(prompts[i]), free)
            free -= read[i]
        step, ended = _advance(active, texts, known, prompts, ends, drafts, read)
        step = step._replace(passes=passes)
        steps.append(step)
        on_step(step)
        drafts = {}
        if drafter:
            may_draft = [known[i] > prompts[i] for i in active] if read else [True] * len(active)
            lengths = np.maximum(known, prompts)[active].astype(np.int32)
            proposed = drafter.draft(active, lengths, may_draft, step.rows)
            drafts = {i: draft for i, draft in zip(active, proposed, strict=True) if draft}
            passes = drafter.passes
        if ended:
            spans[ended, 1] = len(steps) - 1
            if drafter:
                drafter.finish(ended)
            active = [i for i in active if known[i] < ends[i]]
    return Timeline(np.array(steps, np.int64).reshape(-1, len(FIELDS)), spans)


def _advance(
    active: list[int],
    texts: list[list[int]],
    known: npt.NDArray[np.int64],
    prompts: Int32,
    ends: Int32,
    drafts: dict[int, list[int]],
    read: dict[int, int],
) -> tuple[EngineStep, list[int]]:
    """Run a step, which advances `known`. Returns the step and the requests that have ended."""
    contexts = known[active]
    drafted = draft_context = 0
    gained = np.ones(len(active), np.int64)
    for at, i in enumerate(active):
        if i in read:
            gained[at] = read[i] + (known[i] + read[i] == prompts[i])  # the last prompt token yields one
        elif i in drafts:
            draft, position, text = drafts[i], int(known[i]), texts[i]
            drafted += len(draft)
            draft_context += len(draft) * position
            accepted = accept_chain(draft, text, position)
            gained[at] += min(accepted, len(text) - position - 1)
    known[active] += gained
    prompt = sum(read.values())
    emitted = int(gained.sum()) - prompt
    rows = len(active) - len(read) + drafted + prompt
    ended = [i for i in active if known[i] >= ends[i]]
    return EngineStep(len(active), rows, drafted, emitted, int(contexts.sum()), draft_context, prompt), ended


def column(steps: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """A field of all steps."""
    return steps[:, FIELDS.index(name)]
