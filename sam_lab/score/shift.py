# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab shift`: SuffixDecoding under distribution shift (figure 9 of its paper), by replay.

The global tree knows answers of one kind; then answers of another kind are replayed. `frozen` does not change it,
`online` adds each answer when it ends, `from nothing` is online without the earlier answers, and `trained` knows as many
answers of the new kind, to other prompts, and is frozen.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sam_core.files import write_json

from sam_lab.cli import LabError, check_outputs, non_negative, positive
from sam_lab.methods.exact import TREES, Exact
from sam_lab.recordings import SEED, Answer, read_answers
from sam_lab.replay import Counts, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Replay answers of one kind with a global tree of answers of another kind."
    parser.epilog = __doc__.partition("\n\n")[2]
    add = parser.add_argument
    add("--known", type=Path, required=True, metavar="FILE", help="recording that the tree knows")
    add("--new", type=Path, required=True, metavar="FILE", help="recording that is replayed")
    add("--examples", type=positive, default=256, metavar="N", help="answers that the tree knows (256)")
    add("--requests", type=positive, default=200, metavar="N", help="answers that are replayed (200)")
    add("--chunk", type=positive, default=50, metavar="N", help="answers a column (50)")
    add("--trees", choices=TREES, default="both", help="default both")
    add("--nodes", type=positive, default=64, metavar="N", help="maximum nodes of a draft (64)")
    add("--seed", type=non_negative, default=SEED, metavar="N")
    add("--json", type=Path, metavar="OUT", help="write the figures here")


def one_a_prompt(answers: Sequence[Answer], rng: random.Random) -> list[Answer]:
    """One answer of each prompt, in random order: so no new answer is a sibling of a known one."""
    chosen: dict[str, Answer] = {}
    for answer in rng.sample(answers, len(answers)):
        chosen.setdefault(answer.prompt_id, answer)
    return list(chosen.values())


def chunks(drafter: Any, answers: Sequence[Answer], size: int, nodes: int, tree: bool = True) -> list[dict[str, Any]]:
    """The figures of each chunk of answers, replayed one after another with one drafter, and its Counts as by_prompt."""
    found = []
    for at in range(0, len(answers), size):
        counts: Counts = {}
        scopes = [[(answer, True)] for answer in answers[at : at + size]]
        found.append(replay(drafter, scopes, "request", nodes, tree, by_prompt=counts) | {"by_prompt": counts})
    return found


def measure(
    known: Sequence[Sequence[int]],
    trained: Sequence[Sequence[int]],
    new: Sequence[Answer],
    size: int,
    nodes: int,
    trees: str,
) -> dict[str, list[dict[str, Any]]]:
    """Figures a chunk of the four arms; `known` and `trained` are outputs."""
    arms = {
        "frozen": Exact(known, trees),
        "online": Exact(known, trees, keep=True),
        "from nothing": Exact((), trees, keep=True),
        "trained": Exact(trained, trees),
    }
    return {name: chunks(drafter, new, size, nodes) for name, drafter in arms.items()}


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    check_outputs(args.json)
    rng = random.Random(args.seed)
    known = one_a_prompt(read_answers(args.known), rng)[: args.examples]
    new = one_a_prompt(read_answers(args.new), rng)
    trained, new = new[: len(new) // 2][: args.examples], new[len(new) // 2 :][: args.requests]
    if len(known) < args.examples:
        raise LabError(f"{args.known} has {len(known)} prompts: --examples asks for {args.examples}")
    if len(new) < args.chunk:
        raise LabError(f"{args.new} leaves {len(new)} prompts to replay: fewer than a --chunk of {args.chunk}")
    outputs = [[answer.response_ids for answer in answers] for answers in (known, trained)]
    arms = measure(*outputs, new, args.chunk, args.nodes, args.trees)
    columns = [f"{at + 1}-{min(at + args.chunk, len(new))}" for at in range(0, len(new), args.chunk)]
    print(f"tokens a step (precision) of answers to {args.new.name} after {len(known)} of {args.known.name}")
    print(f"{'answers':14}" + "".join(f"{column:>16}" for column in columns))
    for name, figures in arms.items():
        cells = (f"{row['tokens_per_step']:.3f} ({row['precision']:.2f})" for row in figures)
        print(f"{name:14}" + "".join(f"{cell:>16}" for cell in cells))
    if args.json:
        write_json(args.json, {"examples": len(known), "trained": len(trained), "arms": arms})
    return 0
