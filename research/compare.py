# SPDX-License-Identifier: Apache-2.0
"""`python -m research compare`: the methods of the papers that need no model, and sam_core's, on recorded answers."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.files import write_json

from research.exact import ALPHA, Exact
from research.pool import TREES, Frozen, Global
from sam_lab import recordings
from sam_lab.cli import LabError, check_outputs, fold, non_negative, positive
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import CONTEXTS, MAX_RESPONSES, SEED, Answer
from sam_lab.replay import Counts, replay

METHODS = ("chain", "blend", "sd-linear", "sd-tree", "rest")
TABLE = "{:28} {:10} {:12} {:>8} {:>8} {:>9} {:>8}  {}"
ROW = (
    "{recording:28} {context:10} {method:12} {tokens_per_step:8.3f} {proposed_per_step:8.2f} {precision:9.3f} "
    "{us_step:8.1f}  {sources}"
)
EPILOG = """\
methods:
  chain      the article: suffix automaton, oldest occurrence, chains; sees what the context shows it
  blend      sam_core's default rule; chains, or trees with --tree
  sd-linear  SuffixDecoding's chains: tree of the request and global tree of all requests before
  sd-tree    SuffixDecoding's trees
  rest       REST's trees from a datastore

--fold I/N scores the prompts of one fold. The answers of the other folds are the earlier outputs (at most --earlier, in
an order that --seed fixes): REST's datastore, the global tree, and with --context corpus a corpus for chain and blend.
The other contexts and the recordings are those of `python -m sam_lab replay`, see its --help. With --context request
the global tree does not change; in the other contexts it learns from every answer replayed. us/step is the time of a
draft and of appending; `accepted from` are the sources of the accepted tokens. --alpha other than 4 uses a plain-Python
SuffixDecoding without the core's bounds, which is slow.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Score drafting methods on recorded answers: tokens a step that they would have gained."
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a recording")
    add("--method", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD", help=", ".join(METHODS))
    add("--context", nargs="+", choices=(*CONTEXTS, "corpus"), default=["request"], help="default: request")
    add("--k", type=positive, default=8, metavar="K", help="maximum tokens of chain's and blend's chains (8)")
    add("--nodes", type=positive, default=64, metavar="N", help="maximum nodes of the others' drafts (64)")
    add("--tree", action="store_true", help="blend drafts trees of --nodes nodes")
    add("--trees", choices=TREES, default="both", help="of SuffixDecoding (default both)")
    add("--alpha", type=positive, default=ALPHA, metavar="A", help="of SuffixDecoding (4)")
    add("--n-max", type=positive, default=16, metavar="N", help="of REST (16)")
    add("--m", type=positive, default=10, metavar="M", help="of REST (10)")
    add("--earlier", type=non_negative, metavar="N", help="earlier outputs; default: all of the other folds")
    add("--fold", type=fold, default=(0, 2), metavar="I/N", help="default 0/2")
    add("--max-responses", type=positive, default=MAX_RESPONSES, metavar="N")
    add("--max-tokens", type=positive, default=100_000, metavar="N", help="default 100000")
    add("--seed", type=non_negative, default=SEED, metavar="N")
    add("--json", type=Path, metavar="OUT", help="write all figures here")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    check_outputs(args, "json")
    chosen = [pair for pair in itertools.product(args.context, args.method) if _is_known(*pair)]
    if not chosen:
        raise LabError("nothing to replay: rest knows the context request alone, sd-linear and sd-tree all but corpus")
    if any(method == "rest" for _, method in chosen) and importlib.util.find_spec("numba") is None:
        raise LabError(
            "rest needs numba, which is not installed here: run this in .venvs/bench, which ci/setup-env bench makes, "
            "or name the other methods with --method"
        )
    data = [(path, *_halves(path, args)) for path in args.files]
    progress, rows = Progress(), []

    def show(name: str, done: int) -> None:
        progress.show(f"{name}: {done:,} tokens")

    print(
        TABLE.format("recording", "context", "method", "tok/step", "drafted", "precision", "us/step", "accepted from")
    )
    for path, answers, outputs in data:
        for context, method in chosen:
            name = f"{path.name} {context} {method}"
            row = {"recording": path.name[:28], "context": context, "method": method, "earlier_outputs": len(outputs)}
            row |= measure(args, row, answers, outputs, functools.partial(show, name))
            progress.clear()
            row["us_step"] = row["us_propose"] + row["us_append_per_token"] * row["tokens_per_step"]
            rows.append(row)
            print(ROW.format(**row, sources=_sources(row)).rstrip(), flush=True)
    if args.json:
        write_json(args.json, rows)
    return 0


def _is_known(context: str, method: str) -> bool:
    if method in ("chain", "blend"):
        return True
    return context == "request" or (method != "rest" and context != "corpus")


def _halves(path: Path, args: argparse.Namespace) -> tuple[list[Answer], list[Sequence[int]]]:
    """The answers that are scored, and the outputs known before; raises LabError."""
    answers, others = recordings.split_fold(recordings.read_answers(path), args.fold)
    if not answers or not others:
        raise LabError(f"{path} has too few prompts for --fold {args.fold[0]}/{args.fold[1]}: use fewer folds")
    return answers, shuffled_outputs(others, args.seed)[: args.earlier]


def shuffled_outputs(answers: Sequence[Answer], seed: int) -> list[Sequence[int]]:
    """The answers' tokens, in an order that the seed fixes."""
    return [answers[place].response_ids for place in np.random.default_rng(seed).permutation(len(answers))]


def measure(
    args: argparse.Namespace,
    row: dict[str, Any],
    answers: Sequence[Answer],
    outputs: Sequence[Sequence[int]],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """The figures of the method and context of a row on answers, after these outputs."""
    context, method = row["context"], row["method"]
    shown = "request" if context == "corpus" else context
    scopes = recordings.make_scopes(answers, shown, args.max_responses, args.max_tokens, args.seed)
    needs_corpus = (method == "rest" or context == "corpus") and len(outputs)
    with recordings.temporary_corpus(outputs) if needs_corpus else contextlib.nullcontext() as corpus:
        drafter = _drafter(args, context, method, outputs, corpus)
        if method in ("chain", "blend"):
            tree = args.tree and method == "blend"
            size = args.nodes if tree else args.k
        else:
            tree, size = method != "sd-linear", args.nodes
        by_prompt: Counts = {}
        return replay(drafter, scopes, shown, size, tree, progress, by_prompt) | {"by_prompt": by_prompt}


def _drafter(
    args: argparse.Namespace, context: str, method: str, outputs: Sequence[Sequence[int]], corpus: str | None
) -> Any:
    """A new drafter; raises LabError where it needs earlier outputs and there are none."""
    if method in ("chain", "blend"):
        names = ("request",) if context in ("request", "corpus") else ("request", "group", "history")
        rule = "oldest" if method == "chain" else "blend"
        return SamDrafter(rule=rule, sources=names, corpus=corpus if context == "corpus" else None)
    if method == "rest":
        from research.rest import Rest

        if corpus is None:
            raise LabError("rest needs earlier outputs: leave out --earlier 0")
        return Rest(corpus, args.n_max, args.m, args.nodes)
    frozen = context == "request"
    if args.alpha != ALPHA:
        return Exact(outputs, args.trees, args.alpha, keep=not frozen)
    return Frozen(outputs, args.trees) if frozen else Global(args.trees, outputs)


def _sources(row: dict[str, Any]) -> str:
    """The share of each source in the accepted tokens, as the pool counts them while it learns."""
    accepted = {name: counts["accepted_tokens"] for name, counts in row.get("by_source", {}).items()}
    total = sum(accepted.values())
    return ", ".join(f"{name} {count / total:.0%}" for name, count in accepted.items() if count)
