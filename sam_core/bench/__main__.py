# SPDX-License-Identifier: Apache-2.0
"""Measure sam_core beside its peers in one run and hold it against its targets."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

import acceptance
import cost
import numpy
import pressure
from rows import NotMeasured, Row, Targets, TargetsError, as_json, missed, table
from sam_core.files import write_json
from sam_core.replay import Progress
from texts import HERE, Texts

import sam_core

EPILOG = """\
Times are of the processor, not of the clock on the wall, and medians of rounds in which all take turns, with quartiles;
acceptance is a geometric mean over the sets of answers, with their quartiles. The recorded answers come from
../shared/data beside the repository where that is there, else from a small selection in sam_core/bench/data. Targets
and their reasons stand in sam_core/bench/targets.toml.

Writes OUT/bench.json and OUT/bench.png, prints the table and names what was missed. Exits with 1 when a target is
missed or a row failed, with 2 when the targets are not those of the rows, with 0 otherwise.
"""


def machine() -> dict[str, object]:
    """What the figures depend on."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "sam_core": sam_core.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = HERE.parents[1] / "outputs" / "bench"
    parser.add_argument("--out", type=Path, default=out, metavar="OUT", help="default: outputs/bench")
    parser.add_argument("--quick", action="store_true", help="small texts and few rounds: shows that all rows run")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose words contain TEXT")
    parser.add_argument("--targets", type=Path, default=HERE / "targets.toml", metavar="FILE", help="other targets")
    args = parser.parse_args()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: {error}")
    progress = Progress()
    texts = Texts(fixture=args.quick)
    try:
        targets = Targets(args.targets)
        costs = cost.Cost(texts, targets, args.quick, progress.show)
        accepted = acceptance.Acceptance(texts, targets, args.quick, progress.show)
        groups, later = costs.rows(), accepted.rows()
        groups += pressure.rows(texts, targets, args.quick, progress.show)
        targets.check()
    except TargetsError as error:
        parser.error(str(error))
    groups = [group for group in groups if any(args.only in row.what for row in group[0])]
    later = [group for group in later if any(args.only in row.what for row in group[0])]
    rows = [row for group, *_ in [*groups, *later] for row in group]
    if not rows:
        parser.error(f"--only: no row has the words {args.only!r}; leave it out to see them all")
    for group, measure in groups:
        progress.show(group[0].what)
        attempt(group, measure)
    if later:
        accepted.measure(task for *_, wanted in later for task in wanted)
        for group, fill, _ in later:
            attempt(group, fill)
    progress.clear()
    print(f"text of the timings: {costs.remark}; answers: {texts.source}")
    print("empty calls, us: " + ", ".join(f"{name} {us:.2f}" for name, us in costs.details["empty_call_us"].items()))
    print(table(rows))
    measured = [task._asdict() | {"sets": by_set} for task, by_set in accepted.figures.items()]
    record = {"machine": machine(), "quick": args.quick, "rows": [as_json(row) for row in rows]}
    write_json(args.out / "bench.json", record | {"details": costs.details, "acceptance": measured})
    draw(args.out / "bench.png", rows, costs, accepted if later else None)
    held = [row for row in rows if row.bound is not None]
    print(f"\n{sum(row.met for row in held)} of {len(held)} targets met; {args.out}/bench.json")
    print(missed(rows))
    return 0 if all(row.met for row in rows) else 1


def attempt(group: list[Row], measure) -> None:
    """Measure a bundle of rows; where that fails, they say why and the others go on."""
    try:
        measure(group)
    except Exception as error:
        for row in group:
            row.ours, row.error = (
                None,
                str(error) if isinstance(error, NotMeasured) else f"{type(error).__name__}: {error}",
            )


def draw(path: Path, rows: list[Row], costs: cost.Cost, accepted: acceptance.Acceptance | None) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("no picture: matplotlib is not installed here", file=sys.stderr)
        return
    import picture

    part = path.with_suffix(".part")
    picture.draw(part, rows, costs.details, accepted)
    os.replace(part, path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
