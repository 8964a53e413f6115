# SPDX-License-Identifier: Apache-2.0
"""`python -m llm_rl.lab replay`: recorded answers, decoded greedily by exact match, by every method without a model."""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import sam_core
from llm_rl.lab.methods import sam
from llm_rl.lab.models import LabError, check_outputs
from llm_rl.lab.replay import figure
from sam_core import replay

METHODS = ("chain", "blend", "sd-linear", "sd-tree", "rest")
TABLE = "{:28} {:10} {:22} {:>8} {:>8} {:>9} {:>8}  {}"
EPILOG = """\
methods:
  chain      the article: suffix automaton, oldest occurrence, chains; sees what the context shows it
  blend      sam_core's default rule; chains, or trees with --tree
  sd-linear  SuffixDecoding's chains: tree of the request and global tree of all requests before
  sd-tree    SuffixDecoding's trees
  rest       REST's trees from a datastore

--fold I/N scores the prompts of one fold; the others' answers are the earlier outputs: REST's datastore, what the
global tree has seen (--earlier at most, in an order that --seed fixes), and with --context corpus a corpus for chain
and blend. The other contexts, recordings and figures are those of `python -m sam_core replay`, see its --help.
With --context request the global tree stays as it was, as when other prompts were answered before; in the other contexts
it learns from every answer replayed, siblings and, with history, earlier epochs included. us/step is the time of a
draft and of learning what came; `accepted from` are the sources of the accepted tokens. --alpha other than 4 uses a plain-Python pool: slow.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Score drafting methods on recorded answers: tokens a step that they would have gained."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a recording")
    add("--method", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD", help=", ".join(METHODS))
    add("--context", nargs="+", choices=(*replay.CONTEXTS, "corpus"), default=["request"], help="default: request")
    add("--k", type=replay._positive, default=8, metavar="K", help="most tokens of chain's and blend's chains (8)")
    add("--nodes", type=replay._positive, default=64, metavar="N", help="most nodes of the others' drafts (64)")
    add("--tree", action="store_true", help="blend drafts trees of --nodes nodes")
    add("--trees", nargs="+", choices=sam.TREES, default=["both"], help="of SuffixDecoding (default both)")
    add("--alpha", nargs="+", type=replay._positive, default=[sam.ALPHA], metavar="A", help="of SuffixDecoding (4)")
    add("--n-max", nargs="+", type=replay._positive, default=[16], metavar="N", help="of REST (16)")
    add("--m", nargs="+", type=replay._positive, default=[10], metavar="M", help="of REST (10)")
    add("--c", nargs="+", type=replay._positive, default=[64], metavar="C", help="of REST (64)")
    add("--earlier", nargs="+", type=int, metavar="N", help="earlier outputs to know; default: all of the other folds")
    add("--fold", type=replay._fold, default=(0, 2), metavar="I/N", help="default 0/2")
    add("--max-responses", type=replay._positive, default=replay.MAX_RESPONSES, metavar="N")
    add("--max-tokens", type=replay._positive, default=100_000, metavar="N", help="default 100000")
    add("--seed", type=int, default=replay.SEED, metavar="N")
    add("--json", type=Path, metavar="OUT", help="write all figures here after every configuration")
    add("--resume", action="store_true", help="keep the configurations that OUT already has")
    add("--picture", type=Path, metavar="PNG", help="draw tokens a step, and by position in the answer")


def configurations(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What is to be replayed on each file, as the options of each method."""
    found: list[dict[str, Any]] = []
    for context, method in itertools.product(args.context, args.method):
        if method in ("chain", "blend"):
            tree = args.tree and method == "blend"
            found.append({"context": context, "method": method, "k": args.nodes if tree else args.k, "tree": tree})
            continue
        if context == "corpus" or (context != "request" and method == "rest"):
            continue
        for earlier in args.earlier or [None]:
            common = {"context": context, "method": method, "tree": method != "sd-linear", "earlier": earlier}
            if method == "rest":
                grid = itertools.product(args.n_max, args.m, args.c)
                found += [common | {"k": c, "n_max": n, "m": m} for n, m, c in grid]
            else:
                grid = itertools.product(args.trees, args.alpha)
                found += [common | {"k": args.nodes, "trees": trees, "alpha": alpha} for trees, alpha in grid]
    return found


def drafter_of(options: dict[str, Any], earlier: Sequence[Sequence[int]], corpus: str | None) -> Any:
    """A fresh drafter; raises LabError where earlier outputs are needed and there are none."""
    method = options["method"]
    if method in ("chain", "blend"):
        names = ("request",) if options["context"] in ("request", "corpus") else ("request", "group", "history")
        rule = "oldest" if method == "chain" else "blend"
        return replay.SamDrafter(rule=rule, sources=names, corpus=corpus if options["context"] == "corpus" else None)
    if method == "rest":
        from llm_rl.lab.methods.rest import Rest

        if corpus is None:
            raise LabError("rest needs earlier outputs: leave out --earlier 0")
        return Rest(corpus, options["n_max"], options["m"], options["k"])
    frozen = options["context"] == "request"
    if options["alpha"] != sam.ALPHA:
        drafter = sam.Twin(options["alpha"], options["trees"], earlier if frozen else None)
    elif frozen:
        drafter = sam.Frozen(earlier, options["trees"])
    else:
        drafter = sam.Global(options["trees"])
    if not frozen:
        drafter.learn(earlier)
    return drafter


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError, replay.ReplayError (both ValueError) or OSError."""
    if args.resume and not args.json:
        raise LabError("--resume needs --json OUT, the file to continue")
    check_outputs(args.json, args.picture)
    if args.earlier and min(args.earlier) < 0:
        raise LabError(f"--earlier {min(args.earlier)}: take 0 or more")
    results = replay._read_results(args.json) if args.resume and args.json.exists() else []
    identity = {
        "sam_core": sam_core.__version__,
        "fold": "/".join(map(str, args.fold)),
        "max_responses": args.max_responses,
        "max_tokens": args.max_tokens,
        "seed": args.seed,
    }
    asked_for = configurations(args)
    if not asked_for:
        raise LabError("nothing to replay: rest knows the context request alone, sd-linear and sd-tree all but corpus")
    progress, asked = replay.Progress(), []
    print(
        TABLE.format("recording", "context", "method", "tok/step", "drafted", "precision", "us/step", "accepted from")
    )
    for path in args.files:
        answers = replay.read_answers(path)
        others = [answer for answer in answers if not replay.in_fold(answer, args.fold)]
        answers = [answer for answer in answers if replay.in_fold(answer, args.fold)]
        if not answers or not others:
            raise LabError(f"{path} has too few prompts for --fold {identity['fold']}: use fewer folds")
        order = np.random.default_rng(args.seed).permutation(len(others))
        outputs = [others[place].response_ids for place in order]
        for options in asked_for:
            wanted = identity | {"file": str(path), "data": replay._digest(path)} | options
            result = next((r for r in results if wanted.items() <= r.items()), None)
            if result is None:
                name = f"{path.name} {options['context']} {_name(options)}"
                result = wanted | measure(
                    options,
                    answers,
                    outputs,
                    args.max_responses,
                    args.max_tokens,
                    args.seed,
                    functools.partial(_show, progress, name),
                )
                results.append(result)
                if args.json:
                    replay.write_json(args.json, results)
            progress.clear()
            asked.append(result)
            print(_row(result), flush=True)
    if args.picture:
        figure.draw(args.picture, [(_name(result), result) for result in asked])
    return 0


def _show(progress: replay.Progress, name: str, done: int) -> None:
    progress.show(f"{name}: {done:,} tokens")


def measure(
    options: dict[str, Any],
    answers: Sequence[replay.Answer],
    outputs: Sequence[Sequence[int]],
    max_responses: int = replay.MAX_RESPONSES,
    max_tokens: int = replay.MAX_TOKENS,
    seed: int = replay.SEED,
    progress: Callable[[int], None] = lambda tokens: None,
) -> dict[str, Any]:
    """The figures of one of `configurations` on answers, after `outputs` or the first options["earlier"] of them."""
    context = "request" if options["context"] == "corpus" else options["context"]
    scopes = replay.make_scopes(answers, context, max_responses, max_tokens, seed)
    earlier = outputs[: options["earlier"]] if options.get("earlier") is not None else outputs
    with tempfile.TemporaryDirectory(prefix="lab-replay-") as folder:
        needs = options["method"] == "rest" or options["context"] == "corpus"
        corpus = replay.build_corpus(earlier, folder) if needs and len(earlier) else None
        drafter = drafter_of(options, earlier, corpus)
        figures = replay.replay(drafter, scopes, context, options["k"], options["tree"], progress)
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
    return TABLE.format(
        Path(result["file"]).name[:28],
        result["context"],
        _name(result),
        f"{result['tokens_per_step']:.3f}",
        f"{result['proposed_per_step']:.2f}",
        f"{result['precision']:.3f}",
        f"{result['us_propose'] + result['us_append_per_token'] * result['tokens_per_step']:.1f}",
        _sources(result),
    ).rstrip()


def _sources(result: dict[str, Any]) -> str:
    """The share of each source in the accepted tokens, as the pool counts them while it learns."""
    accepted = {name: counts["accepted_tokens"] for name, counts in result.get("by_source", {}).items()}
    total = sum(accepted.values())
    return ", ".join(f"{name} {count / total:.0%}" for name, count in accepted.items() if count)
