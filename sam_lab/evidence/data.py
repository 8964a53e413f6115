# SPDX-License-Identifier: Apache-2.0
"""The sets of recorded answers in sam_lab/data/evidence, their dev and test prompts, and the batches drawn from them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sam_core.files import replacing

from sam_lab.bench.texts import checkpoint
from sam_lab.cli import LabError
from sam_lab.recordings import DATA, MAX_TAIL_REP, Answer, read_answers, read_records, split_fold

FOLDER = DATA / "evidence"
FOLDS = 5
"""One fold of the prompts is for tuning (dev), the others are for results (test)."""
PARTS = ("dev", "test")
KEYS = ("source", "licence", "prompt_id", "group", "model", "epoch", "prompt_ids", "response_ids")


@dataclass(frozen=True)
class Set:
    """A kind of answers.

    title: for tables. files: of the full recordings. prompts: of a batch. groups: of a prompt, from which its answers are taken;
    answers: of a group. earlier: a prompt's first group is an earlier epoch, which only `history` arms see. max_prompts:
    of a part, in the shipped file.
    """

    name: str
    title: str
    files: tuple[str, ...]
    prompts: int
    groups: int
    answers: int
    earlier: bool = False
    max_prompts: int = 1000


SETS = {
    s.name: s
    for s in (
        Set("rl", "RL answers", ("rl-rollouts-qwen3b",), 16, 1, 3, earlier=True, max_prompts=320),
        Set("long", "long reasoning", ("reason-long-groups", "math-long-groups"), 2, 3, 3),
        Set("math", "competition math", ("math-cot-groups8",), 2, 1, 8),
        Set("code", "code", ("code-humaneval-groups",), 3, 1, 16),
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


def split(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers to dev and to test prompts. A hash of the prompt's id decides, so a prompt never changes its part."""
    dev, test = split_fold(list(answers), (0, FOLDS))
    return {"dev": dev, "test": test}


def batches(of: Set, part: str, tokens: int, limit: int | None = None, folder: Path = FOLDER) -> list[Batch]:
    """Batches of the `dev` or `test` prompts of a set, each with prompts of its own, in an order that hashes fix.

    Args:
        tokens: answers are cut there.
        limit: of the batches; default: as many as the prompts fill.

    Raises LabError if there is not one batch.
    """
    by_prompt: dict[str, dict[str, list[Answer]]] = defaultdict(lambda: defaultdict(list))
    for answer in split(read_answers(folder / f"{of.name}.jsonl.gz"))[part]:
        by_prompt[answer.prompt_id][answer.group].append(_cut(answer, of, tokens))
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


def _cut(answer: Answer, of: Set, tokens: int) -> Answer:
    """The answer up to `tokens`. Answers to a prompt share drafts, those of several models with their own model's only."""
    group = answer.group if of.groups > 1 else answer.prompt_id
    return Answer(answer.prompt_ids, answer.response_ids[:tokens], answer.prompt_id, group, answer.epoch)


def _order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def derive(recordings: Path) -> Iterator[Path]:
    """Write the shipped files from the full recordings, NAME.dev.jsonl.zst in a folder; yields each file written."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for of in SETS.values():
        rows = [row for file in of.files for row in _rows(recordings / f"{file}.dev.jsonl.zst")]
        lines = [json.dumps(row, separators=(",", ":")) for row in _chosen(of, rows)]
        buffer = io.BytesIO()
        with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as packed:
            packed.write("".join(line + "\n" for line in lines).encode())
        path = FOLDER / f"{of.name}.jsonl.gz"
        with replacing(path) as temporary:
            temporary.write_bytes(buffer.getvalue())
        yield path


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for _, row in read_records(path):
        repeated = row.get("tail_rep") or tail_repetitions(row["response_ids"])
        if repeated <= MAX_TAIL_REP and row["response_ids"]:
            yield row | ({"epoch": checkpoint(row["model"])} if path.name.startswith("rl-") else {})


def tail_repetitions(ids: list[int], max_period: int = 16) -> int:
    """How often an answer repeats the tokens that it ends in, for the period that repeats most often."""
    most = 1
    for period in range(1, min(max_period, len(ids)) + 1):
        same = 0
        while same + period < len(ids) and ids[-1 - same] == ids[-1 - same - period]:
            same += 1
        most = max(most, 1 + same // period)
    return most


def _chosen(of: Set, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of whole groups: of each prompt the first groups by their hash, the earlier epoch among them."""
    by_prompt: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_prompt[row["prompt_id"]][row["group"]].append(row)
    num_groups = of.groups + of.earlier
    count = dict.fromkeys(PARTS, 0)
    for name in sorted(by_prompt, key=_order):
        whole = [group[: of.answers] for group in by_prompt[name].values() if len(group) >= of.answers]
        whole.sort(key=lambda group: _order(group[0]["group"]))
        if of.earlier:
            whole = _first_and_last(whole)
        answer = (
            Answer(*[whole[0][0][key] for key in ("prompt_ids", "response_ids", "prompt_id", "group")], None)
            if whole
            else None
        )
        part = next((p for p, inside in split([answer]).items() if inside), "") if answer else ""
        if len(whole) < num_groups or count[part] >= of.max_prompts:
            continue
        count[part] += 1
        for group in whole[:num_groups]:
            for row in group:
                yield {key: row[key] for key in KEYS if key in row}


def _first_and_last(groups: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The groups of the earliest and the latest epoch, or none where there is one epoch only."""
    groups = sorted(groups, key=lambda group: group[0]["epoch"])
    differ = len(groups) > 1 and groups[0][0]["epoch"] < groups[-1][0]["epoch"]
    return [groups[0], groups[-1]] if differ else []
