# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab bench-asynchronous`: compare drafts for asynchronous engines with those of a host that waits.

Early: the host waits for what the latest step sampled, but indexes it only after it has drafted. Late: the host drafts
before it knows what the latest step sampled, and `sam_core.device_drafts` completes the drafts on the device.
Acceptance: answers are replayed with 64 requests at a time, by these drafters, by the pool alone, which has indexed all
tokens, and by SuffixGPU, which drafts on the device from all texts. Cost: processor time of the late drafter's host
part and device part of a step, both on one thread of a CPU; a GPU runs its part as one kernel.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sam_core.console import Progress

from sam_lab.bench.late import EarlyDrafter, LateDrafter
from sam_lab.bench.peers.suffix_gpu import SuffixGpuDrafter
from sam_lab.bench.rows import Figure, Row, finish, machine
from sam_lab.bench.texts import SIBLINGS, RecordedTexts
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import DATA, make_scopes
from sam_lab.replay import Drafter, geometric_mean, replay
from sam_lab.workers import finished

RUNNING = 64
"""Concurrent requests."""
NUM_TEXTS = 1024
LENGTHS = (3, 8)
CONTEXTS = ("request", "group", "history")
HISTORY = "rl-rollouts-qwen3b"
"""The set that is replayed with source `history`."""
LIMIT = 100_000
"""Minimum replayed tokens per set."""
PEER_LIMIT = 25_000
"""The same with SuffixGPU, whose CPU operators are slow."""
MEAN, WORST = {"early": 0.99, "late": 0.97}, {"early": 0.98, "late": 0.93}
BATCHES = (1, 64, 256)
HOST_MS = 4.0
"""Goal of the host's part of a step with 256 requests: the device's step takes tens of milliseconds."""


def accept(folder: Path, name: str, context: str, k: int, limit: int, peer: bool) -> dict[str, Any]:
    """Tokens per step of the drafters on at least `limit` tokens of one set.

    peer: whether to add SuffixGPU, and the late drafter on the same PEER_LIMIT tokens.
    """
    torch.set_num_threads(1)
    scopes = make_scopes(RecordedTexts(folder).answers(name), context, max_tokens=limit)
    longest = max(len(answer.prompt_ids) + len(answer.response_ids) for scope in scopes for answer, _ in scope)
    late = LateDrafter(k, NUM_TEXTS, longest)
    drafters: dict[str, Drafter] = {"early": EarlyDrafter(), "late": late, "now": SamDrafter()}
    found = {label: replay(drafter, scopes, context, k, running=RUNNING) for label, drafter in drafters.items()}
    assert len({each["tokens"] for each in found.values()}) == 1
    on_few = {}
    if peer:
        few = make_scopes(RecordedTexts(folder).answers(name), context, max_tokens=min(limit, PEER_LIMIT))
        makers: dict[str, Any] = {"late": LateDrafter, "suffix_gpu": SuffixGpuDrafter}
        for label, make in makers.items():
            each = replay(make(k, NUM_TEXTS, longest), few, context, k, running=RUNNING)
            on_few[label] = each["tokens"] / each["steps"]
    figures = {label: each["tokens"] / each["steps"] for label, each in found.items()}
    drafted = {f"drafted_{label}": found[label]["proposed"] / found[label]["steps"] for label in ("late", "now")}
    return {"set": name, "context": context, "k": k} | figures | drafted | {"on_few": on_few}


def acceptance(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Rows for the geometric mean over the sets and for the worst set, by context and k."""
    rows = []
    for drafter, context, k in itertools.product(MEAN, CONTEXTS, LENGTHS):
        shares = {
            each["set"]: each[drafter] / each["now"] for each in found if (each["context"], each["k"]) == (context, k)
        }
        if not shares:
            continue
        what = f"tokens per step of the synchronous drafter, {drafter}, k={k}, {context}"
        mean = Figure.of([*shares.values()])._replace(median=geometric_mean([*shares.values()]))
        worst = min(shares, key=shares.__getitem__)
        rows.append(Row("acceptance", what, "share", ">=", MEAN[drafter], ours=mean))
        of_worst = Figure.of([shares[worst]])
        rows.append(Row("acceptance", f"{what}, worst set", "share", ">=", WORST[drafter], ours=of_worst, note=worst))
    for context, k in itertools.product(CONTEXTS, LENGTHS):
        leads = [
            each["on_few"]["late"] / each["on_few"]["suffix_gpu"]
            for each in found
            if (each["context"], each["k"]) == (context, k) and each["on_few"]
        ]
        if leads:
            what = f"tokens per step of SuffixGPU, late, k={k}, {context}"
            mean = Figure.of(leads)._replace(median=geometric_mean(leads))
            rows.append(Row("acceptance", what, "share", ">=", 1.0, ours=mean))
    return rows


def cost(texts: RecordedTexts, batch: int, k: int, tokens: int, steps: int) -> list[Row]:
    """Rows for the processor time of a step: the host's part, the device's part, and the synchronous drafter.

    Args:
        tokens: tokens of each prompt.
    """
    answers, _ = texts.ordinary(batch, tokens + 2 * (steps + 2))
    late, now = LateDrafter(k, batch, answers.shape[1]), SamDrafter()
    requests = list(range(batch))
    taken: list[float] = []
    for drafter in (late, now):
        taken.clear()
        for request in requests:
            drafter.start(request, answers[request, :tokens].tolist(), f"g{request // SIBLINGS}")
        for at in range(tokens, answers.shape[1], 2):
            start = time.process_time()
            drafter.append_many(requests, answers[:, at : at + 2].tolist())
            drafter.propose_many(requests, k)
            taken.append(time.process_time() - start)
    figures = {"host": late.host_s, "device, on a CPU": late.device_s, "synchronous": taken}
    rows = []
    for part, seconds in figures.items():
        better, bound = ("<=", HOST_MS) if part == "host" and batch == max(BATCHES) else ("", None)
        row = Row(
            "cost",
            f"{part}, {batch} requests, k={k}",
            "ms",
            better,
            bound,
            ours=Figure.of([1e3 * each for each in seconds[2:]]),
        )
        rows.append(row)
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    out = Path("outputs/bench-asynchronous")
    add("--out", type=Path, default=out, metavar="OUT", help=f"default: {out}")
    add("--data", type=Path, default=DATA, metavar="DIR", help="folder of recordings (default: sam_lab/data, small)")
    add("--quick", action="store_true", help="few tokens and steps, no SuffixGPU: shows that rows run")


def run(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    progress, texts = Progress(), RecordedTexts(args.data)
    limit, tokens, steps = (2000, 64, 5) if args.quick else (LIMIT, 1024, 100)
    jobs = [
        (texts.folder, name, context, k, limit, not args.quick)
        for name in texts.names
        for context in CONTEXTS
        for k in LENGTHS
        if context != "history" or name == HISTORY
    ]
    done = {}
    for job, future in finished(accept, jobs, os.cpu_count()):
        done[job] = future.result()
        progress.show(f"acceptance: {len(done)} of {len(jobs)} configurations")
    found = [done[job] for job in jobs]
    rows = acceptance(found)
    for batch, k in itertools.product(BATCHES, LENGTHS):
        progress.show(f"cost of {batch} requests")
        rows += cost(texts, batch, k, tokens, steps)
    progress.clear()
    record = {"machine": machine() | {"torch": torch.__version__}, "quick": args.quick, "answers": str(args.data)}
    return finish(rows, args.out, "bench-asynchronous", record | {"acceptance": found})
