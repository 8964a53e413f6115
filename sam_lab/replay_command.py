# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab replay`: sam_core's drafting rules on recorded answers."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import write_json

from sam_lab import recordings
from sam_lab.cli import LabError, check_outputs, non_negative, positive, probability
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import CONTEXTS, MAX_RESPONSES, MAX_TOKENS, SEED, Scope
from sam_lab.replay import replay

DEFAULT_K = (3, 4, 8, 16)
EPILOG = recordings.EPILOG
TABLE = "{:28} {:10} {:>7} {:>8} {:>8} {:>9} {:>8} {:>8}  {}"
ROW = (
    "{name:28} {context:10} {draft:>7} {tokens_per_step:8.3f} {proposed_per_step:8.2f} {precision:9.3f} "
    "{us_propose:8.2f} {us_append_per_token:8.2f}  {options}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a recording, see below")
    add("--context", nargs="+", choices=CONTEXTS, default=["request", "group"], help="default: request group")
    sizes = " ".join(map(str, DEFAULT_K))
    add("--k", nargs="+", type=positive, default=DEFAULT_K, metavar="K", help=f"maximum draft tokens, default {sizes}")
    add("--rule", nargs="+", metavar="RULE", help="sam_core's drafting rules; default: the pool's")
    add("--sources", nargs="+", metavar="SOURCE", help="sources of drafts; default: the pool's")
    add("--min-prob", nargs="+", type=probability, metavar="P", help="end a draft at a probability below P")
    add("--corpus", type=Path, metavar="PATH", help="draft from this corpus too")
    add("--max-responses", type=positive, default=MAX_RESPONSES, metavar="N", help=f"default {MAX_RESPONSES}")
    add("--max-tokens", type=positive, default=MAX_TOKENS, metavar="N", help=f"default {MAX_TOKENS}")
    add("--seed", type=non_negative, default=SEED, metavar="N", help=f"default {SEED}")
    add("--json", type=Path, metavar="OUT", help="write all figures here after every configuration")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError (LabError), or OSError for a file, before it prints anything."""
    check_outputs(args, "json")
    common: dict[str, Any] = {"sources": args.sources} if args.sources else {}
    if args.corpus:
        common["corpus"] = str(args.corpus)
    drafters = [
        common | ({} if rule is None else {"rule": rule}) | ({} if min_prob is None else {"min_prob": min_prob})
        for rule in args.rule or [None]
        for min_prob in args.min_prob or [None]
    ]
    for options in drafters:
        _try(options, args.k)
    data = {path: _scopes(path, args) for path in args.files}
    progress, results = Progress(), list[dict[str, Any]]()
    print(TABLE.format("recording", "context", "draft", "tok/step", "drafted", "precision", "us/draft", "us/token", ""))
    for path, by_context in data.items():
        for (context, scopes), options, k in itertools.product(by_context.items(), drafters, args.k):
            configuration = {"file": str(path), "context": context, "k": k, "drafter": options}
            total = sum(len(answer.response_ids) for scope in scopes for answer, scored in scope if scored)
            name = f"{path.name} {context} k={k}"

            def show(done: int, name: str = name, total: int = total) -> None:
                progress.show(f"{name}: {done:,} of {total:,} tokens")

            results.append(configuration | replay(SamDrafter(**options), scopes, context, k, progress=show))
            progress.clear()
            print(_row(results[-1]), flush=True)
            if args.json:
                write_json(args.json, results)
    return 0


def _try(options: dict[str, Any], sizes: Sequence[int]) -> None:
    """Draft once with each size; raises ValueError or OSError for unknown options or sizes."""
    drafter = SamDrafter(**options)
    drafter.start(0, [1], None)
    for k in sizes:
        drafter.propose_many([0], k)


def _scopes(path: Path, args: argparse.Namespace) -> dict[str, list[Scope]]:
    """The replayed part of a recording, by context."""
    answers, limits = recordings.read_answers(path), (args.max_responses, args.max_tokens, args.seed)
    try:
        return {context: recordings.make_scopes(answers, context, *limits) for context in args.context}
    except LabError as error:
        raise LabError(f"{path}: {error}") from None


def _row(result: dict[str, Any]) -> str:
    name, draft = Path(result["file"]).name[:28], f"k={result['k']}"
    options = " ".join(f"{key}={value}" for key, value in result["drafter"].items() if key in ("rule", "min_prob"))
    return ROW.format(**result, name=name, draft=draft, options=options).rstrip()
