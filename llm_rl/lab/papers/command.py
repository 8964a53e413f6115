# SPDX-License-Identifier: Apache-2.0
"""`python -m llm_rl.lab papers`: the experiments of the papers and of the article, as tables and pictures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sam_core
from llm_rl.lab.models import LabError
from llm_rl.lab.papers import Experiment, Limits, Row, article, decoded, pictures, replayed
from sam_core import replay

EXPERIMENTS = {made.name: made for made in (*replayed.EXPERIMENTS, *article.EXPERIMENTS, *decoded.EXPERIMENTS)}
RECORDINGS = Path(__file__).resolve().parents[3] / "sam_core" / "bench" / "data"
EPILOG = "experiments:\n" + "".join(f"  {made.name:15} {made.title}\n" for made in EXPERIMENTS.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure what the papers and the article claim. Writes papers.json, papers.md and pictures; an experiment that "
        "papers.json has with the same data and options is not run again."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--data", nargs="+", type=Path, metavar="FILE", help="recordings; default: those of sam_core/bench/data")
    add("--models", type=Path, metavar="DIR", help="what `lab models --out DIR` made; without it some are left out")
    add("--only", nargs="+", choices=EXPERIMENTS, metavar="NAME", help="these experiments; default: all")
    add("--max-tokens", type=replay._positive, default=20_000, metavar="N", help="of a recording (default 20000)")
    add("--seed", type=int, default=replay.SEED, metavar="N")
    add("--out", type=Path, default=Path("outputs/lab-papers"), metavar="DIR", help="default outputs/lab-papers")


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError, replay.ReplayError (both ValueError) or OSError."""
    chosen = [EXPERIMENTS[name] for name in args.only or EXPERIMENTS]
    left_out = [made.name for made in chosen if made.of == "models" and not args.models]
    if args.only and left_out:
        raise LabError(f"{left_out[0]} needs --models DIR, the folder of `python -m llm_rl.lab models --out DIR`")
    paths = args.data or sorted(RECORDINGS.glob("*.jsonl.gz"))
    alone = "sd-shift needs two recordings that differ: the answers of one are known when those of the other come"
    shift = len({replay._digest(path) for path in paths}) > 1
    if args.only == ["sd-shift"] and not shift:
        raise LabError(alone)
    chosen = [made for made in chosen if made.name not in left_out and (shift or made.name != "sd-shift")]
    args.out.mkdir(parents=True, exist_ok=True)
    store = args.out / "papers.json"
    results = replay._read_results(store) if store.exists() else []
    limits, progress = Limits(args.max_tokens, args.seed), replay.Progress()
    common = {"sam_core": sam_core.__version__, "max_tokens": args.max_tokens, "seed": args.seed}
    shown = []
    for experiment, name, data, what in _units(chosen, args, paths):
        identity = common | {"experiment": experiment.name, "of": name, "data": data}
        result = next((r for r in results if identity.items() <= r.items()), None)
        if result is None:
            progress.show(f"{experiment.name}: {name}")
            result = identity | {"rows": experiment.run(what(), limits)}
            results.append(result)
            replay.write_json(store, results)
            progress.clear()
        print(f"{experiment.name}: {name}: {len(result['rows'])} rows", flush=True)
        shown.append(result)
    tables = {experiment.name: _rows(shown, experiment) for experiment in chosen}
    text = "".join(render(EXPERIMENTS[name], rows) for name, rows in tables.items())
    fresh = args.out / f".papers.md.{os.getpid()}"
    fresh.write_text(text)
    os.replace(fresh, args.out / "papers.md")
    drawn = pictures.draw(args.out, tables)
    print(f"wrote {', '.join(str(path) for path in (store, args.out / 'papers.md', *drawn))}")
    if left_out:
        print(f"left out for want of --models: {', '.join(left_out)}")
    if not shift:
        print(f"left out: {alone}")
    return 0


def _units(
    chosen: Sequence[Experiment], args: argparse.Namespace, paths: Sequence[Path]
) -> Iterator[tuple[Experiment, str, Any, Any]]:
    """What is to be run, in order: an experiment, the name and digest of its data, and a function that loads these."""
    if any(made.of != "models" for made in chosen):
        recordings = replayed.read_recordings(paths, args.seed)
    loaded: list[Any] = []

    def models() -> Any:
        if not loaded:
            loaded.append(decoded.load(args.models, args.seed))
        return loaded[0]

    for made in chosen:
        if made.of == "models":
            weights = sorted(args.models.glob("*/*.safetensors"))
            yield made, "models", [replay._digest(path) for path in weights], models
        elif made.of == "recordings":
            yield made, "all", [recording.data for recording in recordings], lambda: recordings
        else:
            for recording in recordings:
                # What is known from another recording belongs to the data too.
                data = [recording.data, recording.known_of] if made.name == "sd-shift" else [recording.data]
                yield made, recording.name, data, lambda recording=recording: recording


def _rows(results: Sequence[dict[str, Any]], experiment: Experiment) -> list[Row]:
    """The rows of an experiment, with the recording first where there is one a recording."""
    rows = []
    for result in results:
        if result["experiment"] == experiment.name:
            first = {"recording": result["of"]} if experiment.of == "recording" else {}
            rows += [first | row for row in result["rows"]]
    return rows


def render(experiment: Experiment, rows: Sequence[Row]) -> str:
    """A section of Markdown."""
    text = f"## {experiment.title}\n\n{experiment.text}\n\n"
    if not rows:
        return text + "The data are too few.\n\n"
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numbers = [all(not isinstance(row.get(column), str) for row in rows) for column in columns]
    lines = [columns, ["---:" if number else "---" for number in numbers]]
    lines += [[_cell(row.get(column)) for column in columns] for row in rows]
    return text + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.3f}" if abs(value) < 20 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
