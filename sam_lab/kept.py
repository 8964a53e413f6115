# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab kept`: which of a prompt's earlier answers to keep for drafting."""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import write_json

from sam_lab.cli import LabError, check_outputs, non_negative, positive, probability
from sam_lab.recordings import SEED, Answer, parse_answer, read_records
from sam_lab.resumed import RecordedText, cells, compare, read_parts, replay

Earlier = list[tuple[Answer, float]]
"""Answers of earlier epochs with their rewards, the newest last."""
CHOICES: dict[str, Callable[[Earlier, int, random.Random], Earlier]] = {
    "none": lambda earlier, keep, rng: [],
    "oldest": lambda earlier, keep, rng: earlier[:keep],
    "newest": lambda earlier, keep, rng: earlier[-keep:],
    "random": lambda earlier, keep, rng: [earlier[i] for i in sorted(rng.sample(range(len(earlier)), keep))],
    "lowest reward": lambda earlier, keep, rng: sorted(earlier, key=lambda one: -one[1])[-keep:],
    "highest reward": lambda earlier, keep, rng: sorted(earlier, key=lambda one: one[1])[-keep:],
    "all": lambda earlier, keep, rng: earlier,
}
TABLE = "{:32}{:>6}  {:16}{:>14}{:>12}{:>18}"
EPILOG = """\
recordings:
  As for replay, with `epoch` (or `step`), and
    reward         optional (or score): of the answer, a number; default 0
    turns          optional: as for resumed

The answers of each prompt's last epoch are scored, in lock-step, after those of earlier epochs that are kept; of equal
rewards the newest are. Prompts with no more than --keep earlier answers are left out.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Tokens a step of each prompt's last epoch, by which of its earlier answers are kept."
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a recording, see below")
    add("--keep", nargs="+", type=positive, default=[2], metavar="N", help="answers that are kept (default 2)")
    add("--k", type=positive, default=3, help="maximum tokens of a draft (default 3)")
    add("--min-prob", type=probability, default=0.1, metavar="P", help="as for replay (default 0.1)")
    add("--max-prompts", type=positive, default=200, metavar="N", help="of each recording (default 200)")
    add("--seed", type=non_negative, default=SEED, metavar="N", help=f"default {SEED}")
    add("--out", type=Path, help="file for the figures, as JSON")


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError or OSError."""
    check_outputs(args.out)
    rows, progress = [], Progress()
    print(TABLE.format("recording", "keep", "kept", "tokens a step", "of newest", "95 % interval"), flush=True)
    for path in args.files:
        prompts = read_prompts(path, max(args.keep), args.max_prompts, args.seed)
        for keep in args.keep:
            scored = {}
            for name, choose in CHOICES.items():
                rng = random.Random(args.seed)
                kept = [[text_of(answer) for answer, _ in choose(earlier, keep, rng)] for earlier, _ in prompts]
                last = [texts for _, texts in prompts]
                progress.show(f"{path.name}: {keep} {name}")
                scored[name] = replay(last, "uninterrupted", 0, args.k, args.min_prob, earlier=kept)
            progress.clear()
            for name in CHOICES:
                figures = compare(scored[name], scored["newest"], args.seed)
                rows.append({"recording": path.name, "keep": keep, "kept": name, "prompts": len(prompts)} | figures)
                print(TABLE.format(path.name[:31], keep, name, *cells(figures)), flush=True)
    if args.out:
        write_json(args.out, {"k": args.k, "min_prob": args.min_prob, "rows": rows})
    return 0


def text_of(answer: Answer) -> RecordedText:
    tokens = answer.response_ids.tolist()
    return RecordedText(answer.prompt_id.encode(), answer.prompt_ids.tolist(), tokens, [(0, len(tokens))])


def read_prompts(path: Path, keep: int, max_prompts: int, seed: int) -> list[tuple[Earlier, list[RecordedText]]]:
    """Earlier answers and the texts of the last epoch, of prompts drawn at random; raises LabError."""
    epochs: dict[str, dict[float, list[tuple[Answer, Any, Any]]]] = defaultdict(lambda: defaultdict(list))
    for where, record in read_records(path):
        if answer := parse_answer(record, where):
            reward = record.get("reward", record.get("score")) or 0
            if not isinstance(reward, int | float):
                raise LabError(f"{where}: reward is {reward!r}, which is not a number")
            parts = read_parts(record, len(answer.response_ids), where)
            epochs[answer.prompt_id][answer.epoch or 0].append((answer, float(reward), parts))
    chosen, names = [], sorted(epochs)
    random.Random(seed).shuffle(names)
    for name in names:
        *before, last = sorted(epochs[name])
        earlier = [(answer, reward) for epoch in before for answer, reward, _ in epochs[name][epoch]]
        if len(earlier) > keep and len(chosen) < max_prompts:
            texts = [text_of(answer) for answer, *_ in epochs[name][last]]
            for text, (*_, parts) in zip(texts, epochs[name][last], strict=True):
                text.parts = parts
            chosen.append((earlier, texts))
    if not chosen:
        raise LabError(f"{path} has no prompt with more than {keep} answers of earlier epochs: lower --keep")
    return chosen
