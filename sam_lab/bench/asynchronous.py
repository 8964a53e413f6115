# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab bench-asynchronous`: compare drafts for asynchronous engines with those of a host that waits.

Early: the host waits for what the latest step sampled, but indexes it only after it has drafted. Late: the host drafts
before it knows what the latest step sampled, and `sam_core.device_drafts` completes the drafts on the device.
Answers are replayed with 64 requests at a time, by these drafters and by the pool alone, which has indexed all tokens.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sam_core.console import Progress

from sam_lab.bench.late import EarlyDrafter, LateDrafter
from sam_lab.bench.rows import Figure, Row, finish, machine
from sam_lab.bench.texts import SETS
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import make_scopes, read_answers
from sam_lab.replay import Drafter, replay
from sam_lab.workers import finished

RUNNING = 64
"""Concurrent requests."""
NUM_TEXTS = 1024
LENGTHS = (3, 8)
CONTEXTS = ("request", "group", "history")
HISTORY = "rl-rollouts-qwen3b"
"""The set that is replayed with source `history`."""
LIMIT = 100_000
"""Minimum replayed tokens per set; a smaller set is replayed completely."""
MEAN, WORST = {"early": 0.99, "late": 0.97}, {"early": 0.98, "late": 0.93}


def accept(name: str, context: str, k: int, limit: int) -> dict[str, Any]:
    """Tokens per step of the drafters on at least `limit` tokens of one set."""
    scopes = make_scopes(read_answers(SETS[name]), context, max_tokens=limit)
    longest = max(len(answer.prompt_ids) + len(answer.response_ids) for scope in scopes for answer, _ in scope)
    late = LateDrafter(k, NUM_TEXTS, longest)
    drafters: dict[str, Drafter] = {"early": EarlyDrafter(), "late": late, "now": SamDrafter()}
    found = {label: replay(drafter, scopes, context, k, running=RUNNING) for label, drafter in drafters.items()}
    assert len({each["tokens"] for each in found.values()}) == 1
    figures = {label: each["tokens"] / each["steps"] for label, each in found.items()}
    return {"set": name, "context": context, "k": k} | figures


def acceptance(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Rows for the geometric mean over the sets and for the worst set, by context and k."""
    rows = []
    for drafter, context, k in itertools.product(MEAN, CONTEXTS, LENGTHS):
        shares = {
            each["set"]: each[drafter] / each["now"] for each in found if (each["context"], each["k"]) == (context, k)
        }
        what = f"tokens per step of the synchronous drafter, {drafter}, k={k}, {context}"
        worst = min(shares, key=shares.__getitem__)
        mean = Figure.of_sets([*shares.values()])
        rows.append(Row("acceptance", what, "share", ">=", MEAN[drafter], ours=mean))
        of_worst = Figure.of([shares[worst]])
        rows.append(Row("acceptance", f"{what}, worst set", "share", ">=", WORST[drafter], ours=of_worst, note=worst))
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    out = Path("outputs/bench-asynchronous")
    add("--out", type=Path, default=out, metavar="OUT", help=f"default: {out}")
    add("--quick", action="store_true", help="few tokens: shows that all rows run")


def run(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    progress, limit = Progress(), 2000 if args.quick else LIMIT
    jobs = [
        (name, context, k, limit)
        for name, context, k in itertools.product(SETS, CONTEXTS, LENGTHS)
        if context != "history" or name == HISTORY
    ]
    done = {}
    for job, future in finished(accept, jobs, os.cpu_count()):
        done[job] = future.result()
        progress.show(f"{len(done)} of {len(jobs)} configurations")
    progress.clear()
    found = [done[job] for job in jobs]
    record = {"machine": machine(), "quick": args.quick, "acceptance": found}
    return finish(acceptance(found), args.out, "bench-asynchronous", record)
