# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab bench`: measure sam_core and its peers in one run and compare it with its targets."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sam_core.console import Progress

import sam_core
from sam_lab.bench import acceptance, cost, pressure
from sam_lab.bench.rows import Row, finish, machine
from sam_lab.cli import LabError

EPILOG = """\
Times are processor times: medians and quartiles of rounds in which all contestants take turns. Acceptance is a
geometric mean over the sets of sam_lab/data/evidence, with quartiles. Targets and their
reasons are in sam_lab/bench/targets.toml.

Writes OUT/bench.json, prints the table and names what was missed. Exits with 1 when a target is missed or a row failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("outputs/bench"), metavar="OUT", help="default: outputs/bench")
    add("--quick", action="store_true", help="small texts and few rounds: shows that all rows run")
    add(
        "--only",
        default="",
        metavar="TEXT",
        help="only rows whose part and name, `acceptance: chain k=3`, contain TEXT",
    )


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError."""
    args.out.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    accepted = acceptance.AcceptanceBench(args.quick, progress.show)
    groups, later = cost.CostBench(args.quick, progress.show).rows(), accepted.rows()
    groups += pressure.rows(args.quick, progress.show)
    groups = [group for group in groups if wanted(group[0], args.only)]
    later = [group for group in later if wanted(group[0], args.only)]
    rows = [row for bundle in ([group for group, _ in groups] + [group for group, _, _ in later]) for row in bundle]
    if not rows:
        raise LabError(f"--only: no row has {args.only!r} in its name; leave it out to see them all")
    for group, measure in groups:
        progress.show(group[0].what)
        attempt(group, measure)
    if later:
        accepted.measure(task for *_, tasks in later for task in tasks)
        for group, fill, _ in later:
            attempt(group, fill)
    progress.clear()
    measured = [task._asdict() | {"sets": by_set} for task, by_set in accepted.figures.items()]
    record = {
        "machine": machine() | {"numpy": np.__version__, "sam_core": sam_core.__version__},
        "quick": args.quick,
        "acceptance": measured,
    }
    return finish(rows, args.out, "bench", record)


def wanted(bundle: list[Row], text: str) -> bool:
    return any(text in f"{row.section}: {row.what}" for row in bundle)


def attempt(group: list[Row], measure) -> None:
    """Measure a bundle of rows. If that fails, they get the reason, and the other bundles go on."""
    try:
        measure(group)
    except Exception as error:
        for row in group:
            row.ours = None
            row.error = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
