# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab evidence`: every way to speculate, on shipped answers, by the clocks of several devices."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import write_json

import sam_core
from sam_lab import figures
from sam_lab.cli import LabError, check_outputs, digest, positive
from sam_lab.evidence import data, report, tuning
from sam_lab.evidence.arms import METHODS, PEERS, check
from sam_lab.evidence.jobs import PLAIN, Job, Settings, Steps, run_all
from sam_lab.evidence.statistics import by_running, foreseen, pooled, seconds, summary
from sam_lab.evidence.worlds import MEASURED, NAMES, VERIFY, World, worlds

NAMED = ("ngram:3", "ngram:8", "suffix:3", "suffix:8", "suffix:15", "oldest:3:8")
"""Arms that run as they are; oldest:3:8 is the article's rule and switch."""
AUTO = ("auto:3", "auto:8", "auto:15")
DEFAULT = "auto:15"
"""The arm that the goals are about."""
GOAL, WORST = 1.05, 0.98
"""Goals: pooled gain over the best fixed arm, and gain of the worst batch over plain decoding."""
EPILOG = """\
Recorded answers are rolled out again by each arm, in batches that share no prompt. A greedy answer is known, so which
drafts are accepted is exact and needs no model; what a step takes comes from a world.

arms:
  plain              no speculation
  ngram:K, suffix:K  vLLM's own methods, with vLLM's defaults; in every step
  oldest:3:8         the article's: what followed the oldest occurrence in the request's own text, up to 8 requests
  batch:K            sam_core's default rule and sources, in every step
  wide:K             the same with min_prob 0.02, the most that counts with auto, instead of 0.1
  METHOD:K:T         only while at most T requests run: vLLM's num_speculative_tokens_per_batch_size {"1-T": K}
  auto:K             sam's switch auto, which knows nothing at its first step and keeps learning from batch to batch
  saved              the same with what it learned on the dev prompts, and with answers of an earlier epoch (RL answers)
METHOD:K:T is chosen for each world and set on dev prompts; all figures are of test prompts.

worlds:
  cpu                measured: a Qwen3-0.6B on one thread of a CPU
  910c-eager         roofline: Qwen3-32B on 4 dies; the host launches each operator
  910c-graph         roofline: the same in graphs
  h100               fitted to steps on one H100: Qwen3-8B
  article            910c-eager, in which a step with drafts takes --verify times a plain step longer

Drafting itself costs nothing in the other clocks, in no arm. Intervals are of 95 %, by bootstrap over batches.

Finished rollouts are kept in OUT/jobs: --resume continues an interrupted run, or adds sets and worlds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compare every way to speculate on recorded answers, by the clocks of several devices."
    add = parser.add_argument
    add(
        "--sets",
        nargs="+",
        choices=data.SETS,
        default=list(data.SETS),
        metavar="SET",
        help=f"of {', '.join(data.SETS)}",
    )
    add("--worlds", nargs="+", choices=NAMES, default=list(NAMES), metavar="WORLD", help=f"of {', '.join(NAMES)}")
    add("--batches", type=positive, metavar="N", help="at most so many of a set; default: all (20 to 23)")
    add("--tokens", type=positive, default=8192, metavar="N", help="of an answer at most (%(default)s)")
    add("--max-running", type=positive, default=64, metavar="N", help="requests that run at once (%(default)s)")
    add("--verify", type=float, default=VERIFY, metavar="X", help="world article: a share of a step (%(default)s)")
    add("--without", nargs="+", choices=PEERS, default=[], metavar="METHOD", help="leave these out")
    add("--processes", type=positive, default=os.cpu_count(), metavar="N", help="default: one a processor")
    add("--out", type=Path, default=Path("outputs/evidence"), metavar="DIR", help="default: outputs/evidence")
    add(
        "--picture",
        type=Path,
        metavar="OUT",
        help="draw tokens a second by requests running here; default: OUT/evidence.png",
    )
    add("--resume", action="store_true", help="keep the rollouts that OUT has from the same settings")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    check_outputs(args.picture)
    if args.tokens < 3:
        raise LabError(f"--tokens must be 3 or more, got {args.tokens}: of a shorter answer no draft can be accepted")
    if not args.verify >= 0:
        raise LabError(f"--verify must be 0 or more, got {args.verify}")
    check(method for method in PEERS if method not in args.without)
    settings = Settings(args.tokens, args.max_running, args.batches, args.verify)
    _prepare(args.out, settings, args.resume)
    for name in args.without:
        tuning.LENGTHS[name] = ()
    clocks = worlds(args.worlds, args.verify)
    done, chosen = _roll_out(args, settings, clocks)
    result = _result(args, settings, clocks, done, chosen)
    write_json(args.out / "evidence.json", result)
    report.show(result)
    if figures.can_draw():
        report.draw(result, args.picture or args.out / "evidence.png")
    print(f"results: {args.out}")
    silent = [row for row in result["rows"] if row["accepted"] is None and row["arm"].count(":") < 2]
    for row in silent:
        print(f"SILENT: {row['arm']} drafted nothing on {row['set']} in world {row['world']}")
    return 1 if silent else 0


def _prepare(out: Path, settings: Settings, resume: bool) -> None:
    """A folder of these settings: emptied, or with the rollouts that it has. LabError where they are of others."""
    files = [*sorted(data.FOLDER.glob("*.jsonl.gz")), *MEASURED.values()]
    wanted = settings._asdict() | {"sam_core": sam_core.__version__, "data": [digest(path) for path in files]}
    written = out / "settings.json"
    if resume and written.exists():
        if json.loads(written.read_text()) != wanted:
            raise LabError(f"{out} is of other settings, data or sam_core: leave out --resume, or choose another --out")
    else:
        shutil.rmtree(out / "jobs", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(written, wanted)


def _roll_out(
    args: argparse.Namespace, settings: Settings, clocks: list[World]
) -> tuple[dict[Job, Steps], dict[tuple[str, str], dict[str, str]]]:
    """All rollouts, and the best fixed arms by set and world."""
    progress = Progress()

    def roll(jobs: list[Job], what: str) -> None:
        done.update(
            run_all(
                jobs,
                settings,
                args.out / "jobs",
                args.processes,
                lambda n, of: progress.show(f"{what}: {n} of {of} rollouts"),
            )
        )

    done: dict[Job, Steps] = {}
    roll([job for of in args.sets for job in tuning.always(of)], "dev prompts")
    roll([job for of in args.sets for world in clocks for job in tuning.shortlist(of, done, world)], "dev, thresholds")
    chosen = {(of, world.name): tuning.best(of, done, world) for of in args.sets for world in clocks}
    named = [arm for arm in (PLAIN, *NAMED) if arm.partition(":")[0] not in args.without]
    fixed = [Job(of, "test", arm) for of in args.sets for arm in named]
    fixed += [Job(of, "test", arm) for (of, _), arms in chosen.items() for arm in arms.values()]
    learning = [Job(of, "test", arm, w.name) for of in args.sets for w in clocks for arm in AUTO]
    learning += [Job(of, "test", DEFAULT, w.name, saved=True) for of in args.sets for w in clocks]
    longest = sorted(fixed + learning, key=lambda job: (job.of != "long", not job.world))
    roll(longest, "test prompts")
    progress.clear()
    return done, chosen


def _result(
    args: argparse.Namespace,
    settings: Settings,
    clocks: list[World],
    done: dict[Job, Steps],
    chosen: dict[tuple[str, str], dict[str, str]],
) -> dict[str, Any]:
    rows, running, goals = [], [], []
    sets = {}
    for of in args.sets:
        batches = data.batches(data.SETS[of], "test", settings.tokens, settings.num_batches)
        lengths = [len(answer.response_ids) for batch in batches for answer in batch.answers]
        sets[of] = {
            "title": data.SETS[of].title,
            "batches": len(batches),
            "prompts": sum(len(batch.prompts) for batch in batches),
            "answers": len(lengths),
            "tokens": sum(lengths),
            "longest": max(lengths),
        }
        plain = done[Job(of, "test", PLAIN)]
        for world in clocks:
            arms = chosen[of, world.name]
            steps = {
                arm: done[Job(of, "test", arm)] for arm in (*NAMED, *arms.values()) if Job(of, "test", arm) in done
            }
            steps |= {arm: done[Job(of, "test", arm, world.name)] for arm in AUTO}
            steps["saved"] = done[Job(of, "test", DEFAULT, world.name, saved=True)]
            best_of = {arm: [m for m in (*METHODS, "all") if arms.get(m) == arm] for arm in steps}
            own = seconds(steps[DEFAULT], world)
            for arm, of_arm in steps.items():
                row = {"set": of, "world": world.name, "arm": arm, "best_of": best_of[arm]}
                rows.append(row | summary(plain, of_arm, world) | {"auto_over": pooled(seconds(of_arm, world), own)})
            for arm in dict.fromkeys(("oldest:3:8", arms.get("suffix", ""), arms["all"], DEFAULT)):
                if arm in steps:
                    running.append(
                        {"set": of, "world": world.name, "arm": arm} | {"bins": by_running(plain, steps[arm], world)}
                    )
            auto = next(row for row in rows[::-1] if row["arm"] == DEFAULT)
            best = steps[arms["all"]]
            best_row = next(row for row in rows[::-1] if row["arm"] == arms["all"])
            goals.append(
                {
                    "set": of,
                    "world": world.name,
                    "auto": auto["pooled"],
                    "worst": auto["worst"],
                    "best": arms["all"],
                    "best_gain": best_row["pooled"],
                    "over_best": best_row["auto_over"],
                    "foresight": pooled(seconds(best, world), seconds(foreseen(best), world))[0],
                    "goal": "reached" if best_row["auto_over"][0] >= GOAL else "missed",
                    "worst_goal": "reached" if auto["worst"] >= WORST else "missed",
                }
            )
    return {
        "settings": settings._asdict(),
        "worlds": {world.name: world.title for world in clocks},
        "sets": sets,
        "goals": goals,
        "rows": rows,
        "running": running,
    }
