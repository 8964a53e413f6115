# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab compare`: the methods of the papers that need no model beside sam_core's, on recorded answers."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.reference.rules import ALPHA

import sam_core
from sam_lab import recordings
from sam_lab.cli import LabError, Results, check_outputs, digest, fold, non_negative, positive
from sam_lab.methods.exact import Exact
from sam_lab.methods.pool import TREES, Frozen, Global, SamDrafter
from sam_lab.recordings import CONTEXTS, MAX_RESPONSES, MAX_TOKENS, SEED, Answer
from sam_lab.replay import Counts, replay
from sam_lab.score import figure

METHODS = ("chain", "blend", "sd-linear", "sd-tree", "rest")
TABLE = "{:28} {:10} {:22} {:>8} {:>8} {:>9} {:>8}  {}"
ROW = (
    "{recording:28} {context:10} {name:22} {tokens_per_step:8.3f} {proposed_per_step:8.2f} {precision:9.3f} "
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
The other contexts and the recordings are those of `python -m sam_lab replay`, see its --help. With --context request the
global tree does not change; in the other contexts it learns from every answer replayed. us/step is the time of a draft
and of appending; `accepted from` are the sources of the accepted tokens. --alpha other than 4 uses a plain-Python
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
    add("--trees", nargs="+", choices=TREES, default=["both"], help="of SuffixDecoding (default both)")
    add("--alpha", nargs="+", type=positive, default=[ALPHA], metavar="A", help="of SuffixDecoding (4)")
    add("--n-max", nargs="+", type=positive, default=[16], metavar="N", help="of REST (16)")
    add("--m", nargs="+", type=positive, default=[10], metavar="M", help="of REST (10)")
    add("--c", nargs="+", type=positive, default=[64], metavar="C", help="of REST (64)")
    add("--earlier", nargs="+", type=non_negative, metavar="N", help="earlier outputs; default: all of the other folds")
    add("--fold", type=fold, default=(0, 2), metavar="I/N", help="default 0/2")
    add("--max-responses", type=positive, default=MAX_RESPONSES, metavar="N")
    add("--max-tokens", type=positive, default=100_000, metavar="N", help="default 100000")
    add("--seed", type=non_negative, default=SEED, metavar="N")
    add("--json", type=Path, metavar="OUT", help="write all figures here after every configuration")
    add("--resume", action="store_true", help="keep the configurations that OUT already has")
    add("--picture", type=Path, metavar="PNG", help="draw tokens a step, and by position in the answer")


def configurations(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Options of each replay of a file."""
    chosen: list[dict[str, Any]] = []
    for context, method in itertools.product(args.context, args.method):
        if method in ("chain", "blend"):
            tree = args.tree and method == "blend"
            chosen.append({"context": context, "method": method, "k": args.nodes if tree else args.k, "tree": tree})
            continue
        if context == "corpus" or (context != "request" and method == "rest"):
            continue
        for earlier in args.earlier or [None]:
            common = {"context": context, "method": method, "tree": method != "sd-linear", "earlier": earlier}
            if method == "rest":
                grid = itertools.product(args.n_max, args.m, args.c)
                chosen += [common | {"k": c, "n_max": n, "m": m} for n, m, c in grid]
            else:
                grid = itertools.product(args.trees, args.alpha)
                chosen += [common | {"k": args.nodes, "trees": trees, "alpha": alpha} for trees, alpha in grid]
    return chosen


def drafter_of(options: dict[str, Any], earlier: Sequence[Sequence[int]], corpus: str | None) -> Any:
    """A new drafter; raises LabError where it needs earlier outputs and there are none."""
    method = options["method"]
    if method in ("chain", "blend"):
        names = ("request",) if options["context"] in ("request", "corpus") else ("request", "group", "history")
        rule = "oldest" if method == "chain" else "blend"
        return SamDrafter(rule=rule, sources=names, corpus=corpus if options["context"] == "corpus" else None)
    if method == "rest":
        from sam_lab.methods.rest import Rest

        if corpus is None:
            raise LabError("rest needs earlier outputs: leave out --earlier 0")
        return Rest(corpus, options["n_max"], options["m"], options["k"])
    frozen = options["context"] == "request"
    if options["alpha"] != ALPHA:
        return Exact(earlier, options["trees"], options["alpha"], keep=not frozen)
    if frozen:
        return Frozen(earlier, options["trees"])
    return Global(options["trees"], earlier)


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    results = Results(args.json, args.resume)
    check_outputs(args.picture)
    identity = {
        "sam_core": sam_core.__version__,
        "fold": "/".join(map(str, args.fold)),
        "max_responses": args.max_responses,
        "max_tokens": args.max_tokens,
        "seed": args.seed,
    }
    chosen = configurations(args)
    if not chosen:
        raise LabError("nothing to replay: rest knows the context request alone, sd-linear and sd-tree all but corpus")
    if any(options["method"] == "rest" for options in chosen) and importlib.util.find_spec("numba") is None:
        raise LabError(
            "rest needs numba, which is not installed here: run this in .venvs/bench, which ci/setup-env bench makes, or name "
            "the other methods with --method"
        )
    progress, shown = Progress(), []
    print(
        TABLE.format("recording", "context", "method", "tok/step", "drafted", "precision", "us/step", "accepted from")
    )
    for path in args.files:
        answers, others = recordings.split_fold(recordings.read_answers(path), args.fold)
        if not answers or not others:
            raise LabError(f"{path} has too few prompts for --fold {identity['fold']}: use fewer folds")
        order = np.random.default_rng(args.seed).permutation(len(others))
        outputs = [others[place].response_ids for place in order]
        for options in chosen:
            configuration = identity | {"file": str(path), "data": digest(path)} | options
            result = results.find(configuration)
            if result is None:
                name = f"{path.name} {options['context']} {_name(options)}"
                limits = args.max_responses, args.max_tokens, args.seed
                figures = measure(
                    options, answers, outputs, *limits, lambda tokens: progress.show(f"{name}: {tokens:,} tokens")
                )
                result = results.add(configuration | figures)
            progress.clear()
            shown.append(result)
            print(_row(result), flush=True)
    if args.picture:
        figure.draw(args.picture, [(_name(result), result) for result in shown])
    return 0


def measure(
    options: dict[str, Any],
    answers: Sequence[Answer],
    outputs: Sequence[Sequence[int]],
    max_responses: int = MAX_RESPONSES,
    max_tokens: int = MAX_TOKENS,
    seed: int = SEED,
    progress: Callable[[int], None] = lambda tokens: None,
    by_prompt: Counts | None = None,
) -> dict[str, Any]:
    """The figures of one of `configurations` on answers, after `outputs` or the first options["earlier"] of them."""
    context = "request" if options["context"] == "corpus" else options["context"]
    scopes = recordings.make_scopes(answers, context, max_responses, max_tokens, seed)
    earlier = outputs[: options["earlier"]] if options.get("earlier") is not None else outputs
    needs_corpus = (options["method"] == "rest" or options["context"] == "corpus") and len(earlier)
    with recordings.temporary_corpus(earlier) if needs_corpus else contextlib.nullcontext() as corpus:
        drafter = drafter_of(options, earlier, corpus)
        figures = replay(drafter, scopes, context, options["k"], options["tree"], progress, by_prompt)
    if hasattr(drafter, "matches"):
        figures["matches"], figures["accepted_by_match"] = drafter.matches.tolist(), drafter.accepted.tolist()
    return figures | {"earlier_outputs": len(earlier)}


def _name(options: dict[str, Any]) -> str:
    """A configuration in a few words."""
    method, words = options["method"], []
    if method == "rest":
        words = [f"n{options['n_max']} m{options['m']} c{options['k']}"]
    elif method in ("chain", "blend"):
        words = [f"{'n' if options['tree'] else 'k'}={options['k']}"]
    else:
        words = [] if options["trees"] == "both" else [options["trees"]]
        words += [f"alpha={options['alpha']}"]
    words += [f"({options['earlier']})"] if options.get("earlier") is not None else []
    return " ".join([method, *words])


def _row(result: dict[str, Any]) -> str:
    us_step = result["us_propose"] + result["us_append_per_token"] * result["tokens_per_step"]
    cells = {"recording": Path(result["file"]).name[:28], "name": _name(result), "us_step": us_step}
    return ROW.format(**result | cells, sources=_sources(result)).rstrip()


def _sources(result: dict[str, Any]) -> str:
    """The share of each source in the accepted tokens, as the pool counts them while it learns."""
    accepted = {name: counts["accepted_tokens"] for name, counts in result.get("by_source", {}).items()}
    total = sum(accepted.values())
    return ", ".join(f"{name} {count / total:.0%}" for name, count in accepted.items() if count)
