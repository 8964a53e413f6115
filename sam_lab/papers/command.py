# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab papers`: the claims of SuffixDecoding, REST and GSD, measured on recorded answers.

Answers are decoded greedily by exact match, without a model; the methods know outputs for a recording's other prompts.
Each line has tokens per step (or nodes per draft) of both sides, first the one that the paper calls better, and their
quotient with its 95 % interval by bootstrap.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sam_core.console import Progress

from sam_lab.cli import positive
from sam_lab.papers import gsd, rest, suffix_decoding
from sam_lab.papers.claims import Claim, Recording
from sam_lab.recordings import DATA
from sam_lab.replay import interval, quotient

PAPERS = {"suffix-decoding": suffix_decoding, "rest": rest, "gsd": gsd}
EPILOG = "\n".join(f"{name}\n\n{module.__doc__}" for name, module in PAPERS.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="a recording; default: those of sam_lab/data/evidence")
    add("--paper", nargs="+", choices=PAPERS, default=list(PAPERS), metavar="NAME", help=", ".join(PAPERS))
    add("--max-tokens", type=positive, default=20_000, metavar="N", help="scored of a recording (default 20000)")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    files = args.files or sorted((DATA / "evidence").glob("*.jsonl.gz"))
    recordings = [Recording.read(path, args.max_tokens) for path in files]
    progress = Progress()
    for name in args.paper:
        for recording in recordings:
            progress.show(f"{name}: {recording.name}")
            lines = [line(claim) for claim in PAPERS[name].claims(recording)]
            progress.clear()
            print(f"{name}, {recording.name}, {len(recording.outputs)} earlier outputs")
            print("".join(f"  {line}\n" for line in lines), flush=True)
    return 0


def line(claim: Claim) -> str:
    """The claim, both sides, their quotient with its interval, and the verdict."""
    sides = quotient(claim.better), quotient(claim.worse), quotient(claim.better, claim.worse)
    ends = interval(claim.better, claim.worse)
    figures = "".join("{:>8}".format("-" if side is None else f"{side:.3f}") for side in sides)
    span = "{:.3f} to {:.3f}".format(*ends) if ends else "-"
    return f"{claim.text:66}{figures}  ({span})  {verdict(claim)}"


def verdict(claim: Claim) -> str:
    """agrees, disagrees, or open if the interval includes 1."""
    low, high = interval(claim.better, claim.worse) or (1.0, 1.0)
    return "agrees" if low > 1 else "disagrees" if high < 1 else "open"
