# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab resumed`: groups by name and groups by tokens, where answers are resumed or have turns."""

from __future__ import annotations

import argparse
import functools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.files import write_json

from sam_lab.cli import LabError, check_outputs, non_negative, positive, probability
from sam_lab.methods.pool import SamDrafter
from sam_lab.recordings import SEED, parse_answer, read_records
from sam_lab.replay import accept_chain, bootstrap

ARMS = ("uninterrupted", "by name", "by tokens")
TABLE = "{:32}{:>7}  {:15}{:>14}{:>14}{:>18}"
EPILOG = """\
recordings:
  As for replay, see there. Of a conversation `response_ids` holds all that follows its first prompt, and
    turns          optional: [first, end] of each part of response_ids that the model generated, in their order; what lies
                   between them, such as the results of tools, is given. Default: all is generated

arms:
  uninterrupted    an answer is one request, to which what is given is appended: the most that can be reached
  by name          each part is a request of its own, its prompt all that came before, in the group of the prompt's name
  by tokens        the same without a name: requests with equal prompts form a group

The answers of a group advance in lock-step: all draft, then all append; with --context sequential one after another, so that
the earlier ones are complete, as those of an earlier step or epoch are. With --cut N a request ends after N tokens and a new
one resumes it, as after an abort for new weights.
"""


@dataclass
class RecordedText:
    """One answer: tokens, and the parts of it that requests generate, as (first, end); name: that of its prompt."""

    name: bytes
    prompt: list[int]
    tokens: list[int]
    parts: list[tuple[int, int]]
    steps: int = 0
    at: int = 0
    part: int = 0
    request: int | None = field(default=None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Tokens a step where answers are resumed or have turns, by the way groups are formed."
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a recording, see below")
    add("--cut", nargs="+", type=non_negative, default=[0], metavar="N", help="tokens of a request; 0: all (default)")
    add("--context", choices=("group", "sequential"), default="group", help="see below (default group)")
    add("--k", type=positive, default=3, help="maximum tokens of a draft (default 3)")
    add("--min-prob", type=probability, default=0.1, metavar="P", help="as for replay (default 0.1)")
    add("--max-tokens", type=positive, default=300_000, metavar="N", help="of each recording (default 300000)")
    add("--seed", type=non_negative, default=SEED, metavar="N", help=f"default {SEED}")
    add("--out", type=Path, help="file for the figures, as JSON")


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError or OSError."""
    check_outputs(args.out)
    rows, progress = [], Progress()
    print(TABLE.format("recording", "cut", "groups", "tokens a step", "of by tokens", "95 % interval"), flush=True)
    for path in args.files:
        groups = read_groups(path, args.max_tokens, args.seed)
        for cut in args.cut:
            sums = {}
            for arm in ARMS:
                show = functools.partial(progress.show, f"{path.name}, {cut}, {arm}")
                sums[arm] = replay(groups, arm, cut, args.k, args.min_prob, args.context == "sequential", show)
            progress.clear()
            for arm in ARMS:
                figures = compare(sums[arm], sums["by tokens"], args.seed)
                rows.append({"recording": path.name, "cut": cut, "groups": arm, "prompts": len(groups)} | figures)
                print(TABLE.format(path.name[:31], cut, arm, *cells(figures)), flush=True)
    if args.out:
        write_json(args.out, {"k": args.k, "min_prob": args.min_prob, "context": args.context, "rows": rows})
    return 0


def read_groups(path: Path, max_tokens: int, seed: int) -> list[list[RecordedText]]:
    """The answers to each prompt, prompts in an order that the seed fixes, up to about max_tokens generated ones.

    Raises LabError for a recording that is not one.
    """
    groups: dict[str, list[RecordedText]] = defaultdict(list)
    for where, record in read_records(path):
        if answer := parse_answer(record, where):
            tokens = answer.response_ids.tolist()
            parts = read_parts(record, len(tokens), where)
            name, prompt = answer.prompt_id.encode(), answer.prompt_ids.tolist()
            groups[answer.group].append(RecordedText(name, prompt, tokens, parts))
    chosen, names = [], sorted(groups)
    random.Random(seed).shuffle(names)
    for name in names:
        if max_tokens <= 0:
            break
        if len(groups[name]) > 1:
            chosen.append(groups[name])
            max_tokens -= sum(end - first for text in groups[name] for first, end in text.parts)
    if not chosen:
        raise LabError(f"{path} has no prompt with several answers")
    return chosen


def read_parts(record: dict[str, Any], size: int, where: str) -> list[tuple[int, int]]:
    """The `turns` of a line whose answer has `size` tokens; raises LabError."""
    given, before = record.get("turns", [[0, size]]), 0
    for part in given if isinstance(given, list) and given else [None]:
        sound = isinstance(part, list) and len(part) == 2 and all(isinstance(at, int) for at in part)
        if not sound or not before <= part[0] < part[1] <= size:
            raise LabError(f"{where}: turns must be [first, end] of parts of response_ids, in order, got {part!r}")
        before = part[1]
    return [(first, end) for first, end in given]


def replay(
    groups: list[list[RecordedText]],
    arm: str,
    cut: int,
    k: int,
    min_prob: float,
    sequential: bool = False,
    progress: Callable[[], None] = lambda: None,
    earlier: list[list[RecordedText]] | None = None,
) -> list[tuple[int, int]]:
    """Generated tokens and steps of each group, under one arm; one pool serves all, as it does an engine's requests.

    earlier: of each group, texts of an earlier epoch, the newest last.
    """
    drafter = SamDrafter(min_prob=min_prob)
    numbers = iter(range(1 << 62))
    sums: list[tuple[int, int]] = []
    for index, group in enumerate(groups):
        for text in earlier[index] if earlier else []:
            slot = drafter.pool.open(np.array(text.prompt, np.int32), text.name)
            drafter.pool.append(slot, np.array(text.tokens, np.int32))
            drafter.pool.close(slot)
        texts = [
            RecordedText(t.name, t.prompt, t.tokens, _cut(t.parts, cut) if arm != "uninterrupted" else t.parts)
            for t in group
        ]
        for text in texts:
            text.at = text.parts[0][0]
        waiting = [[text] for text in reversed(texts)] if sequential else [texts]
        running: list[RecordedText] = []
        while running or waiting:
            running = running or waiting.pop()
            for text in running:
                if text.request is None:
                    text.request = next(numbers)
                    prompt = np.array(text.prompt + text.tokens[: text.at], np.int32)
                    drafter.slots[text.request] = drafter.pool.open(
                        prompt, "by_prompt" if arm == "by tokens" else text.name
                    )
            drafts = drafter.propose_many([text.request for text in running], k)
            rows = []
            for text, draft in zip(running, drafts, strict=True):
                end = text.parts[text.part][1]
                row = text.tokens[text.at : min(text.at + accept_chain(draft, text.tokens, text.at) + 1, end)]
                text.at += len(row)
                text.steps += 1
                rows.append(row)
            drafter.append_many([text.request for text in running], rows)
            running = [text for text in running if _goes_on(drafter, text, arm)]
        sums.append(
            (sum(end - first for text in group for first, end in text.parts), sum(text.steps for text in texts))
        )
        progress()
    return sums


def _cut(parts: list[tuple[int, int]], cut: int) -> list[tuple[int, int]]:
    return [(at, min(at + cut, end)) for first, end in parts for at in range(first, end, cut)] if cut else parts


def _goes_on(drafter: SamDrafter, text: RecordedText, arm: str) -> bool:
    """Whether the answer has tokens left; ends its request at the end of a part, or appends what is given."""
    if text.at < text.parts[text.part][1]:
        return True
    text.part += 1
    if text.part < len(text.parts) and arm == "uninterrupted":
        given = text.tokens[text.at : text.parts[text.part][0]]
        drafter.append_many([text.request], [given])
    else:
        drafter.finish(text.request)
        text.request = None
    if text.part == len(text.parts):
        return False
    text.at = text.parts[text.part][0]
    return True


def compare(sums: list[tuple[int, int]], base: list[tuple[int, int]], seed: int) -> dict[str, Any]:
    """Tokens, tokens a step, their ratio to those of `base`, and its 95 % interval (low, high), by resampling prompts; low
    and high are None with one prompt."""
    mine, others = np.array(sums, float), np.array(base, float)

    def ratio(a: Any, b: Any) -> Any:
        return (a[..., 0] / a[..., 1]) / (b[..., 0] / b[..., 1])

    interval = bootstrap(lambda drawn: ratio(mine[drawn].sum(1), others[drawn].sum(1)), len(mine), seed)
    low, high = interval or (None, None)
    tokens, steps = (sum(column) for column in zip(*sums, strict=True))
    figures = {"tokens_per_step": tokens / steps, "ratio": ratio(mine.sum(0), others.sum(0)), "low": low, "high": high}
    return {"tokens": tokens} | {
        name: None if value is None else round(float(value), 4) for name, value in figures.items()
    }


def cells(figures: dict[str, Any]) -> tuple[str, str, str]:
    """Those of a table, of what `compare` returned: tokens a step, ratio, interval."""
    low, high = figures["low"], figures["high"]
    interval = "-" if low is None else f"{low:.3f} - {high:.3f}"
    return f"{figures['tokens_per_step']:.3f}", f"{figures['ratio']:.3f}", interval
