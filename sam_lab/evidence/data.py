# SPDX-License-Identifier: Apache-2.0
"""The sets of recorded answers in sam_lab/data/evidence, their dev and test prompts, and batches of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from sam_lab.cli import LabError
from sam_lab.recordings import DATA, Answer, read_answers, split

FOLDER = DATA / "evidence"


@dataclass(frozen=True)
class Set:
    """A kind of answers.

    Attributes:
        title: for tables.
        prompts: of a batch.
        groups: of a prompt, from which its answers are taken.
        answers: of a group.
        earlier: whether a prompt's first group is an earlier epoch, which only the arm `saved` sees.
    """

    name: str
    title: str
    prompts: int
    groups: int
    answers: int
    earlier: bool = False


SETS = {
    s.name: s
    for s in (
        Set("rl", "RL answers", 16, 1, 3, earlier=True),
        Set("long", "long reasoning", 2, 3, 3),
        Set("math", "competition math", 2, 1, 8),
        Set("code", "code", 3, 1, 16),
    )
}


@dataclass(frozen=True)
class Batch:
    """Answers that are requested at once.

    Attributes:
        prompts: ids of its prompts, which no other batch of the set has.
        answers: the recorded answers.
        earlier: answers to the same prompts from an earlier epoch.
    """

    prompts: list[str]
    answers: list[Answer]
    earlier: list[Answer]


def batches(of: Set, part: str, tokens: int, limit: int | None = None, folder: Path = FOLDER) -> list[Batch]:
    """Batches of the `dev` or `test` prompts of a set, each with prompts of its own, in an order that hashes fix.

    Args:
        tokens: answers are cut there.
        limit: of the batches; default: as many as the prompts fill.

    Raises LabError if there is not one batch.
    """
    by_prompt: dict[str, dict[str, list[Answer]]] = defaultdict(lambda: defaultdict(list))
    for answer in split(read_answers(folder / f"{of.name}.jsonl.gz"))[part]:
        by_prompt[answer.prompt_id][answer.group].append(_shortened(answer, of, tokens))
    names = sorted(by_prompt, key=_order)
    found = []
    for i in range(0, len(names) - of.prompts + 1, of.prompts):
        now: list[Answer] = []
        earlier: list[Answer] = []
        for name in names[i : i + of.prompts]:
            groups = list(by_prompt[name].values())
            if of.earlier:
                groups.sort(key=lambda group: group[0].epoch or 0)
                earlier += groups.pop(0)
            now += [answer for group in groups[: of.groups] for answer in group[: of.answers]]
        found.append(Batch(names[i : i + of.prompts], now, earlier))
    if not found:
        raise LabError(f"{folder / of.name}.jsonl.gz has too few {part} prompts for a batch of {of.prompts}")
    return found[:limit]


def _shortened(answer: Answer, of: Set, tokens: int) -> Answer:
    """The answer up to `tokens`.

    Answers to a prompt share drafts, those of several models with their own model's only.
    """
    group = answer.group if of.groups > 1 else answer.prompt_id
    return Answer(answer.prompt_ids, answer.response_ids[:tokens], answer.prompt_id, group, answer.epoch)


def _order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
