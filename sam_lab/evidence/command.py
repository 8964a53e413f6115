# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab evidence`: compare all ways to speculate on shipped answers, with cost models of devices."""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import write_json

from sam_lab import figures
from sam_lab.cli import LabError, positive, probability
from sam_lab.evidence import data, report, tuning
from sam_lab.evidence.arms import PEERS, check
from sam_lab.evidence.devices import EXPENSIVE, NAMES, VERIFY, Device
from sam_lab.evidence.jobs import PLAIN, Job, Settings, batches_of, job, run_all
from sam_lab.evidence.model import KINDS
from sam_lab.evidence.rollout import Timeline
from sam_lab.evidence.statistics import by_running, by_task, pooled, seconds, summary

ARTICLE = "oldest:3/0/0/0"
"""The article's rule and switch."""
AUTO = ("auto:15", "auto:3")
"""The recommended arm, which the others are compared with, and one with few draft tokens."""
BOTH = ("model+auto:15", "auto:15")
"""AUTO with a drafter of the model's own."""
RUNNING = (16, 128, 256)
PICTURED = 128
EPILOG = """\
Each arm rolls out the recorded answers again. A greedy answer is known, so which drafts are accepted is exact and needs
no model; the time of a step comes from a device's cost model. A batch requests three times the number of answers that
run at once, as verl sends them to a replica, or all that the set has.

arms:
  plain              no speculation
  METHOD:K           up to K draft tokens in every step
  METHOD:K/K/K/K     while at most 8, 32, 128, or more requests run: vLLM's num_speculative_tokens_per_batch_size
  METHOD[NAME=VALUE,...]:K   with these parameters instead of the defaults
  ngram, suffix      vLLM's own model-free methods; ngram_gpu drafts as ngram does
  suffix-device      its suffix decoding on the second runner (05084858, not released) by its rules, with adaptive
                     verification, which knows each device's costs
  oldest:3/0/0/0     the article's: what followed the oldest occurrence in the request's own text, up to 8 requests
  batch              sam_core's default rule and sources
  auto:K             sam's switch auto, which knows nothing at its first step and keeps learning from batch to batch
  saved              the same with what it learned on the dev prompts, and answers of an earlier epoch (RL answers only)
The parameters and K of ngram, suffix, suffix-device and batch are chosen on dev prompts for each device, set and number
of requests; suffix-device has one K for all numbers. All figures are of test prompts.

devices:
  h100               fitted to steps on one H100: Qwen3-8B
  h200               fitted to steps of vLLM 0.32's second runner on one H200, with the plugin: Qwen3-8B
  article            910c-eager, in which a step with drafts takes --verify times a plain step longer
  cpu                measured: a Qwen3-0.6B on one thread of a CPU
  910c-eager         roofline: Qwen3-32B on 4 dies; the host launches each operator: a bound, drafts are nearly free
  910c-graph         roofline: the same in graphs, for which `auto` pads drafts to k tokens

Except on the H100, drafting itself takes no time. Intervals of 95 % are by bootstrap over tasks: reasoning-gym's 22 for
RL answers, else prompts; a step's time is shared equally by its requests.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--sets",
        nargs="+",
        choices=data.SETS,
        default=list(data.SETS),
        metavar="SET",
        help=f"of {', '.join(data.SETS)}",
    )
    add(
        "--devices",
        nargs="+",
        choices=NAMES,
        default=["h100", "h200", EXPENSIVE],
        metavar="DEVICE",
        help=f"of {', '.join(NAMES)}; default: h100 h200 {EXPENSIVE}",
    )
    add(
        "--running",
        type=positive,
        nargs="+",
        default=list(RUNNING),
        metavar="N",
        help="concurrent requests, as max_num_seqs; default: 16 128 256",
    )
    add("--batches", type=positive, metavar="N", help="maximum number of batches of a set; default: all")
    add("--tokens", type=positive, default=8192, metavar="N", help="of an answer at most (%(default)s)")
    add("--verify", type=float, default=VERIFY, metavar="X", help="device article: a share of a step (%(default)s)")
    add("--drafter", choices=KINDS, metavar="KIND", help=f"simulate a model drafter: {', '.join(KINDS)}")
    add(
        "--correlation",
        type=probability,
        default=0.0,
        metavar="X",
        help="of its accepted tokens with the texts' (%(default)s)",
    )
    add("--without", nargs="+", choices=PEERS, default=[], metavar="METHOD", help="leave these out")
    add("--processes", type=positive, default=os.cpu_count(), metavar="N", help="default: one a processor")
    add("--out", type=Path, default=Path("outputs/evidence"), metavar="DIR", help="default: outputs/evidence")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    if args.tokens < 3:
        raise LabError(f"--tokens must be 3 or more, got {args.tokens}: of a shorter answer no draft can be accepted")
    if not args.verify >= 0:
        raise LabError(f"--verify must be 0 or more, got {args.verify}")
    if args.correlation and not args.drafter:
        raise LabError("--correlation needs a --drafter")
    check(method for method in PEERS if method not in args.without)
    settings = Settings(args.tokens, args.batches, args.verify, args.drafter, args.correlation)
    args.out.mkdir(parents=True, exist_ok=True)
    methods = [
        method
        for method in tuning.GRID
        if method.startswith("model") == bool(args.drafter) and method.removeprefix("model+") not in args.without
    ]
    clocks = settings.devices(args.devices)
    done, chosen = _roll_out(args, settings, clocks, methods)
    result = _result(args, settings, clocks, done, chosen)
    write_json(args.out / "evidence.json", result)
    report.show(result)
    if figures.can_draw():
        report.draw(result, args.out / "evidence.png")
    print(f"results: {args.out}")
    silent = [row for row in result["rows"] if row["accepted"] is None]
    for row in silent:
        print(f"SILENT: {row['arm']} drafted nothing on {row['set']}, {row['device']}, {row['running']} running")
    return 1 if silent else 0


Done = dict[Job, list[Timeline]]
Chosen = dict[tuple[str, str, int], dict[str, str]]
"""The best arm of each method, by set, device and requests at once."""


def _roll_out(
    args: argparse.Namespace, settings: Settings, clocks: list[Device], methods: list[str]
) -> tuple[Done, Chosen]:
    """All rollouts, and the chosen arms."""
    progress = Progress()
    done: Done = {}

    def roll(jobs: list[Job], what: str) -> None:
        done.update(
            run_all(jobs, settings, args.processes, lambda n, of: progress.show(f"{what}: {n} of {of} rollouts"))
        )

    names = [device.name for device in clocks]
    roll([one for of in args.sets for one in tuning.jobs(of, methods, names)], "dev prompts")
    chosen: Chosen = {}
    for of, device, running in _cases(args, clocks):
        found = {method: tuning.best(of, method, done, device, running, settings) for method in methods}
        chosen[of, device.name, running] = {method: arm for method, arm in found.items() if arm}
    jobs = []
    for of, device, running in _cases(args, clocks):
        arms = (PLAIN, *_fixed(settings), *chosen[of, device.name, running].values(), *_autos(settings))
        jobs += [job(of, "test", running, arm, device.name) for arm in arms]
        if _has_saved(of, settings):
            jobs.append(Job(of, "test", running, AUTO[0], device.name, saved=True))
    roll(sorted(jobs, key=lambda one: (one.of != "long", not one.device)), "test prompts")  # the longest first
    progress.clear()
    return done, chosen


def _fixed(settings: Settings) -> tuple[str, ...]:
    return () if settings.drafter else (ARTICLE,)


def _autos(settings: Settings) -> tuple[str, ...]:
    """Arms with switch `auto`; the first one is compared with the others."""
    return BOTH if settings.drafter else AUTO


def _has_saved(of: str, settings: Settings) -> bool:
    return data.SETS[of].earlier and not settings.drafter


def _cases(args: argparse.Namespace, clocks: list[Device]) -> list[tuple[str, Device, int]]:
    return list(itertools.product(args.sets, clocks, args.running))


def _result(
    args: argparse.Namespace, settings: Settings, clocks: list[Device], done: Done, chosen: Chosen
) -> dict[str, Any]:
    rows, by_number = [], []
    for of, device, running in _cases(args, clocks):
        arms = chosen[of, device.name, running]
        shown = (PLAIN, *_fixed(settings), *arms.values(), *_autos(settings))
        rollouts = {arm: done[job(of, "test", running, arm, device.name)] for arm in shown}
        if _has_saved(of, settings):
            rollouts["saved"] = done[Job(of, "test", running, AUTO[0], device.name, saved=True)]
        plain = rollouts.pop(PLAIN)
        tasks = [data.task(a) for batch in batches_of(of, "test", running, settings) for a in batch.answers]
        auto = by_task(seconds(rollouts[_autos(settings)[0]], device), tasks)
        case = {"set": of, "device": device.name, "running": running}
        for arm, own in rollouts.items():
            best_of = [method for method, best in arms.items() if best == arm]
            over = pooled(by_task(seconds(own, device), tasks), auto)
            row = case | {"arm": arm, "best_of": best_of, "auto_over": over}
            rows.append(row | summary(plain, own, device, tasks))
        if running == PICTURED or len(args.running) == 1:
            lines = list(dict.fromkeys((*_fixed(settings), *arms.values(), _autos(settings)[0])))
            by_number += [case | {"arm": arm, "bins": by_running(plain, rollouts[arm], device)} for arm in lines]
    return {
        "settings": settings._asdict() | {"running": args.running},
        "devices": {device.name: device.title for device in clocks},
        "sets": {of: _described(of, args.running[0], settings) for of in args.sets},
        "rows": rows,
        "by_running": by_number,
    }


def _described(of: str, running: int, settings: Settings) -> dict[str, Any]:
    """Size of a set's test part."""
    answers = [answer for batch in batches_of(of, "test", running, settings) for answer in batch.answers]
    return {
        "title": data.SETS[of].title,
        "prompts": len({answer.prompt_id for answer in answers}),
        "answers": len(answers),
        "tokens": sum(len(answer.response_ids) for answer in answers),
    }
