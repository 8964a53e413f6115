# SPDX-License-Identifier: Apache-2.0
"""The sets of recorded answers in sam_lab/data/evidence, their dev and test prompts, and batches of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sam_lab.recordings import DATA, Answer, read_answers, split

FOLDER = DATA / "evidence"
WAVES = 3
"""Requests of a batch, as a multiple of the concurrent ones. All are requested at its beginning, as verl does."""


@dataclass(frozen=True)
class Set:
    """A kind of answers.

    Attributes:
        title: name in tables.
        groups: number of groups per prompt whose answers are used.
        answers: number of answers per group.
        earlier: whether a prompt's first group is an earlier epoch, which only the arm `saved` sees.
    """

    name: str
    title: str
    groups: int
    answers: int
    earlier: bool = False


SETS = {
    s.name: s
    for s in (
        Set("rl", "RL answers", 1, 3, earlier=True),
        Set("long", "long reasoning", 3, 3),
        Set("math", "competition math", 1, 8),
        Set("code", "code", 1, 16),
    )
}


@dataclass(frozen=True)
class Batch:
    """Answers that are requested at once.

    Attributes:
        answers: the recorded answers. No other batch of the set has their prompts.
        earlier: answers to the same prompts from an earlier epoch.
    """

    answers: list[Answer]
    earlier: list[Answer]


def batches(of: Set, part: str, tokens: int, running: int, limit: int | None = None) -> list[Batch]:
    """All `dev` or `test` prompts of a set, in the order of their hashes, split into batches of equal size.

    Args:
        tokens: maximum tokens of an answer; longer ones are cut.
        running: concurrent requests. A batch has WAVES times this number, or all that the set has.
        limit: maximum number of batches; default: all.
    """
    by_prompt: dict[str, dict[str, list[Answer]]] = defaultdict(lambda: defaultdict(list))
    for answer in split(read_answers(FOLDER / f"{of.name}.jsonl.gz"))[part]:
        by_prompt[answer.prompt_id][answer.group].append(_shortened(answer, of, tokens))
    names = sorted(by_prompt, key=_order)
    number = max(1, len(names) * of.groups * of.answers // (WAVES * running))
    found = []
    for chosen in np.array_split(np.array(names, object), number)[:limit]:
        batch = Batch([], [])
        for name in chosen:
            groups = list(by_prompt[name].values())
            if of.earlier:
                groups.sort(key=lambda group: group[0].epoch or 0)
                batch.earlier.extend(groups.pop(0))
            batch.answers.extend(answer for group in groups[: of.groups] for answer in group[: of.answers])
        found.append(batch)
    return found


def task(answer: Answer) -> str:
    """The task of a prompt: TASK for reasoning-gym's rg/TASK/ID, of which there are 22, else the prompt itself."""
    source, _, name = answer.prompt_id.partition("/")
    return name.partition("/")[0] if source == "rg" else answer.prompt_id


def _shortened(answer: Answer, of: Set, tokens: int) -> Answer:
    """The answer, cut after `tokens`.

    Answers to a prompt share drafts, but only those of the same model.
    """
    group = answer.group if of.groups > 1 else answer.prompt_id
    return Answer(answer.prompt_ids, answer.response_ids[:tokens], answer.prompt_id, group, answer.epoch)


def _order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
