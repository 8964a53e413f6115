# SPDX-License-Identifier: Apache-2.0
"""Recorded answers: read a recording, split its prompts into folds, draw the answers to replay."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import random
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from sam_core.corpus import build_corpus, open_lines

from sam_lab.cli import LabError

DATA = Path(__file__).with_name("data")
"""Small recordings, part of the repository."""
CONTEXTS = ("request", "group", "sequential", "history", "nohistory")
MAX_RESPONSES, MAX_TOKENS, SEED = 1200, 500_000, 20
MAX_TAIL_REP = 8
FOLDS = 5
"""Number of folds of the prompts: one is for tuning (dev), the others are for results (test)."""
PARTS = ("dev", "test")
REQUIRED = "every line needs prompt_ids, response_ids and prompt_id"
EPILOG = """\
recordings:
  JSON Lines, plain or compressed (.gz, .zst), one answer a line:
    prompt_ids     token ids of the prompt as the model saw it, integers from 0 to 2147483647
    response_ids   token ids of the answer; lines without any are left out
    prompt_id      name of the prompt: a string or a number
    group          optional: answers with the same name were sampled together; default: the same prompt and epoch
    epoch          optional (or step): a number; for history, answers to the prompt with a smaller one come first
    tail_rep       optional: repetitions of the loop that an answer ends in; lines with more than 8 are left out
  Other keys are ignored.

contexts:
  request          the prompt and the answer itself
  group            a group's answers advance in lock-step and see each other: all draft, then all append
  sequential       a group's answers one after another; earlier ones are seen in full
  history          answers to the same prompt of earlier epochs are seen in full, then lock-step as in group
  nohistory        the same answers as history without the earlier ones: its control

Groups are drawn in an order that --seed determines, until --max-responses or --max-tokens is reached. All figures
except times are the same in every run.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a recording; token ids as array('i')."""

    prompt_ids: array[int]
    response_ids: array[int]
    prompt_id: str
    group: str
    epoch: float | None


Scope = list[tuple[Answer, bool]]
"""Answers that may see each other, and whether each is scored; answers that are not scored come first."""


def read_answers(path: str | Path) -> list[Answer]:
    """The answers of a recording, in its order, without empty ones and those that end in a loop (MAX_TAIL_REP).

    Raises LabError for an invalid line or if no answer is left, ValueError for a truncated compressed file, or OSError.
    """
    answers = []
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip() and (answer := _parse_answer(line, f"{path}, line {number}")):
                answers.append(answer)
    if not answers:
        raise LabError(f"{path} has no answers: {REQUIRED}")
    return answers


def _parse_answer(line: str | bytes, where: str) -> Answer | None:
    """The answer of a line, or None for an empty one and for a loop; raises LabError, which names `where`."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise LabError(f"{where} is not JSON ({error}): a recording has one object per line") from None
    if not isinstance(record, dict):
        raise LabError(f"{where} is not a JSON object: {REQUIRED}")
    prompt, response = _token_ids(record, "prompt_ids", where), _token_ids(record, "response_ids", where)
    if not isinstance(record.get("prompt_id"), str | int):
        raise LabError(f"{where}: prompt_id must be a string or a number: {REQUIRED}")
    epoch = record.get("epoch", record.get("step"))
    for name, value in (("epoch", epoch), ("tail_rep", record.get("tail_rep"))):
        if not isinstance(value, int | float | None) or (isinstance(value, float) and math.isnan(value)):
            raise LabError(f"{where}: {name} is {value!r}, which is not a number")
    if not response or (record.get("tail_rep") or 0) > MAX_TAIL_REP:
        return None
    group = record.get("group")
    name = f"{record['prompt_id']}@{epoch}" if group is None else str(group)
    return Answer(prompt, response, str(record["prompt_id"]), name, epoch)


def _token_ids(record: dict[str, Any], name: str, where: str) -> array[int]:
    value = record.get(name)
    if not isinstance(value, list):
        raise LabError(f"{where}: {name} is {'missing' if value is None else 'not a list'}: {REQUIRED}")
    try:
        ids = array("i", value)
    except (TypeError, OverflowError):
        ids = None
    if ids is None or (ids and min(ids) < 0):
        raise LabError(f"{where}: {name} must hold token ids, integers from 0 to 2147483647")
    return ids


def split_fold(answers: Sequence[Answer], fold: tuple[int, int]) -> tuple[list[Answer], list[Answer]]:
    """The answers whose prompts are in fold i of n, and the others. The hash of a prompt's id is its fold, 0 .. n-1."""
    number, folds = fold
    parts: tuple[list[Answer], list[Answer]] = [], []
    for answer in answers:
        parts[int(hashlib.sha1(answer.prompt_id.encode()).hexdigest(), 16) % folds != number].append(answer)
    return parts


def split(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers to dev and to test prompts. The hash of its id decides, so a prompt is always in the same part."""
    dev, test = split_fold(list(answers), (0, FOLDS))
    return {"dev": dev, "test": test}


def by_group(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers of each group, in their order."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.group].append(answer)
    return groups


def make_scopes(
    answers: Sequence[Answer],
    context: str,
    max_responses: int = MAX_RESPONSES,
    max_tokens: int = MAX_TOKENS,
    seed: int = SEED,
) -> list[Scope]:
    """Draw scopes for a context until one of the limits on scored answers is reached; the last scope is whole.

    Raises LabError where history is asked of a recording without earlier epochs.
    """
    groups = by_group(answers)
    candidates: list[Scope] = []
    if context in ("history", "nohistory"):
        by_prompt: dict[str, list[list[Answer]]] = defaultdict(list)
        for group in groups.values():
            by_prompt[group[0].prompt_id].append(group)
        for _, of_prompt in sorted(by_prompt.items()):
            for group in of_prompt:
                now = group[0].epoch
                answers_to_prompt = (answer for other in of_prompt for answer in other)
                earlier = [a for a in answers_to_prompt if now is not None and a.epoch is not None and a.epoch < now]
                if earlier:
                    earlier.sort(key=lambda answer: answer.epoch or 0)
                    shown = earlier if context == "history" else []
                    candidates.append([(a, False) for a in shown] + [(a, True) for a in group])
        if not candidates:
            raise LabError(f"context {context} needs answers to one prompt with different `epoch` (or `step`)")
    else:
        candidates = [[(answer, True) for answer in groups[name]] for name in sorted(groups)]
    random.Random(seed).shuffle(candidates)
    chosen: list[Scope] = []
    responses = tokens = 0
    for scope in candidates:
        if responses >= max_responses or tokens >= max_tokens:
            break
        chosen.append(scope)
        responses += sum(scored for _, scored in scope)
        tokens += sum(len(answer.response_ids) for answer, scored in scope if scored)
    return chosen


@contextlib.contextmanager
def temporary_corpus(texts: Iterable[Sequence[int] | npt.NDArray[Any]]) -> Iterator[str]:
    """Build a corpus of texts (token ids) for the duration of a `with` block; yields its path."""
    with tempfile.TemporaryDirectory(prefix="sam-lab-") as folder:
        path = Path(folder, "corpus")
        build_corpus(texts, path)
        yield str(path)
