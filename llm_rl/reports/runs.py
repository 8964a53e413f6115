# SPDX-License-Identifier: Apache-2.0
"""Read the folder of a finished run: run.json, steps.jsonl (verl's step log), and engine-<replica>.jsonl if present."""

import json
from dataclasses import dataclass, field

from llm_rl.errors import UserError
from llm_rl.steps import TIMES, complete_lines, mean, read_steps

SPEC = "rollout/spec/"
REQUIRED = ["timing_s/gen", TIMES]
REQUIRED += [SPEC + name for name in ("decode_steps", "request_steps", "tokens", "drafted", "accepted")]
REQUIRED += [SPEC + name for name in ("tail_s", "tail_tokens")]


@dataclass(frozen=True)
class Run:
    """A run: its record, and for each training step its numeric metrics and its engine rows.

    An engine row is (replica, start_s, seconds, running requests, tokens, drafted, accepted); `engine` is empty without
    engine logs.
    """

    record: dict
    steps: list[dict]
    engine: list[list[tuple]] = field(default_factory=list)

    def values(self, metric, first=0):
        """A metric's value in each training step since the `first`; None if it is not a number."""
        return [step.get(metric) for step in self.steps[first:]]

    def load(self, first=0):
        """Mean shares {"others", "steal"} of CPU time (llm_rl/load.py) since the `first` training step.

        None if no step has them.
        """
        loads = [load for step, load in self.record.get("load", {}).items() if int(step) > first]
        return {name: mean(load[name] for load in loads) for name in ("others", "steal")} if loads else None

    def total(self, name, first=0):
        """The sum of rollout/spec/<name> since the `first` training step; None if no step has it."""
        values = [step[SPEC + name] for step in self.steps[first:] if SPEC + name in step]
        return sum(values) if values else None


def read_run(folder):
    """The Run in `folder`. Raises UserError if a file is missing, unreadable or incomplete, or the run failed."""
    record = _read_record(folder / "run.json")
    if record["status"] != "ok":
        raise UserError(f"{folder} is not a finished run: its run.json has status {record['status']!r}")
    steps = _read_steps(folder / "steps.jsonl")
    expected = record.get("steps", len(steps))
    if len(steps) < max(expected, 1):
        raise UserError(f"{folder / 'steps.jsonl'} has {len(steps)} training steps, expected {max(expected, 1)}")
    return Run(record, steps, _split(_read_engine(folder), [step[SPEC + "tokens"] for step in steps]))


def read_json(path):
    """The parsed content of a JSON file. Raises UserError."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path} is not JSON") from None


def _read_record(path):
    record = read_json(path)
    for name in ("pin_set", "tree_ids", "seed", "sam", "threshold", "k", "status"):
        if not isinstance(record, dict) or name not in record:
            raise UserError(f"{path} has no {name!r}")
    return record


def _read_steps(path):
    """The metrics of each finished step."""
    steps = read_steps(path)
    for step in steps:
        for metric in REQUIRED:
            if metric not in step["data"]:
                raise UserError(f"{path} has no number for {metric} in step {step['step']}")
    return [step["data"] for step in steps]


def _read_engine(folder):
    """Rows of all replicas in order of time, without rows that have no running request."""
    rows = []
    for replica, path in enumerate(sorted(folder.glob("engine-*.jsonl"))):
        for number, (_, row) in enumerate(complete_lines(path), 1):
            if not isinstance(row, list) or len(row) != 6 or not all(isinstance(v, (int, float)) for v in row):
                raise UserError(f"{path}, line {number}, is not an engine step: it must have six numbers")
            if row[2]:
                rows.append((replica, *row))
    return sorted(rows, key=lambda row: row[1])


def _split(rows, tokens):
    """Split engine rows into training steps by their token counts; [] if the two logs do not belong together.

    Every row has tokens. The split is exact unless replicas keep generating while they are counted, as with
    asynchronous trainers; there a step may have no row.
    """
    if sum(row[4] for row in rows) != sum(tokens):
        return []
    parts: list[list] = [[] for _ in tokens]
    step, left = 0, tokens[0]
    for row in rows:
        while left <= 0:
            step += 1
            left += tokens[step]
        parts[step].append(row)
        left -= row[4]
    return parts
