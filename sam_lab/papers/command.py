# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab papers`: the experiments of the papers and of the article, as tables and pictures."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import replacing

import sam_core
from sam_lab.cli import LabError, Results, digest, non_negative, positive
from sam_lab.papers import Experiment, Limits, Row, article, claims, decoded, figure, replayed
from sam_lab.recordings import DATA, SEED

EXPERIMENTS = {each.name: each for each in (*replayed.EXPERIMENTS, *article.EXPERIMENTS, *decoded.EXPERIMENTS)}
EPILOG = "experiments:\n" + "".join(f"  {each.name:15} {each.title}\n" for each in EXPERIMENTS.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure what the papers and the article claim. Writes papers.json, papers.md and pictures; an experiment that "
        "papers.json has with the same data and options is not run again."
    )
    add = parser.add_argument
    add("--data", nargs="+", type=Path, metavar="FILE", help="recordings; default: those of sam_lab/data")
    add("--models", type=Path, metavar="DIR", help="of `python -m sam_lab models`; without it some are left out")
    add("--only", nargs="+", choices=EXPERIMENTS, metavar="NAME", help="these experiments; default: all")
    add("--max-tokens", type=positive, default=20_000, metavar="N", help="of a recording (default 20000)")
    add("--seed", type=non_negative, default=SEED, metavar="N")
    add("--out", type=Path, default=Path("outputs/lab-papers"), metavar="DIR", help="default outputs/lab-papers")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    chosen = [EXPERIMENTS[name] for name in args.only or EXPERIMENTS]
    left_out = [each.name for each in chosen if each.of == "models" and not args.models]
    if args.only and left_out:
        raise LabError(f"{left_out[0]} needs --models DIR, the folder of `python -m sam_lab models --out DIR`")
    paths = args.data or sorted(DATA.glob("*.jsonl.gz"))
    alone = "sd-shift needs two recordings that differ: the answers of one are known when those of the other come"
    have_two = len({digest(path) for path in paths}) > 1
    if args.only == ["sd-shift"] and not have_two:
        raise LabError(alone)
    chosen = [each for each in chosen if each.name not in left_out and (have_two or each.name != "sd-shift")]
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "papers.json"
    results = Results(store, resume=True)
    limits, progress = Limits(args.max_tokens, args.seed), Progress()
    common = {"sam_core": sam_core.__version__, "max_tokens": args.max_tokens, "seed": args.seed}
    tables: dict[str, list[Row]] = {experiment.name: [] for experiment in chosen}
    for experiment, name, data, load in _units(chosen, args, paths):
        identity = common | {"experiment": experiment.name, "of": name, "data": data}
        result = results.find(identity)
        if result is None:
            progress.show(f"{experiment.name}: {name}")
            result = identity | {"rows": experiment.run(load(), limits)}
            results.add(result)
            progress.clear()
        print(f"{experiment.name}: {name}: {len(result['rows'])} rows", flush=True)
        first = {"recording": name} if experiment.of == "recording" else {}
        tables[experiment.name] += [first | row for row in result["rows"]]
    judged = list(claims.judge(tables))
    for row in judged:
        of = f" ({row['of']})" if row["of"] else ""
        interval = f", 95 %: {_cell(row['95 %'])}" if row["95 %"] != [row["value"]] * 2 else ""
        print(f"{row['paper']}: {row['claim']}{of}: {_cell(row['value'])}{interval}: {row['verdict']}")
    text = "".join(render(EXPERIMENTS[name], rows) for name, rows in tables.items())
    not_shown = [dict(zip(("paper", "what", "reason"), each, strict=True)) for each in claims.NOT_SHOWN]
    text += f"## Claims\n\n{claims.RULE}\n\n{_table(judged)}" if judged else ""
    text += f"## Not shown\n\n{_table(not_shown)}"
    with replacing(args.out / "papers.md") as temporary:
        temporary.write_text(text)
    drawn = figure.draw(args.out, tables)
    print(f"wrote {', '.join(str(path) for path in (store, args.out / 'papers.md', *drawn))}")
    if left_out:
        print(f"left out without --models: {', '.join(left_out)}")
    if not have_two:
        print(f"left out: {alone}")
    return 0


def _units(
    chosen: Sequence[Experiment], args: argparse.Namespace, paths: Sequence[Path]
) -> Iterator[tuple[Experiment, str, Any, Any]]:
    """Each experiment with the name and digests of its data, and a function that loads these."""
    if any(each.of != "models" for each in chosen):
        recordings = replayed.read_recordings(paths, args.seed)
    models = functools.cache(lambda: decoded.load(args.models, args.seed))
    for experiment in chosen:
        if experiment.of == "models":
            weights = sorted(args.models.glob("*/*.safetensors"))
            yield experiment, "models", [digest(path) for path in weights], models
        elif experiment.of == "recordings":
            yield experiment, "all", [recording.data for recording in recordings], lambda: recordings
        else:
            for recording in recordings:
                # What is known from another recording belongs to the data too.
                data = [recording.data, recording.known_of] if experiment.name == "sd-shift" else [recording.data]
                yield experiment, recording.name, data, lambda recording=recording: recording


def render(experiment: Experiment, rows: Sequence[Row]) -> str:
    """A section of Markdown."""
    text = f"## {experiment.title}\n\n{experiment.text}\n\n"
    return text + (_table(rows) if rows else "The data are too few.\n\n")


def _table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numbers = [all(not isinstance(row.get(column), str) for row in rows) for column in columns]
    lines = [columns, ["---:" if number else "---" for number in numbers]]
    lines += [[_cell(row.get(column)) for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " - ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.3f}" if abs(value) < 20 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
