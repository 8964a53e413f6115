# SPDX-License-Identifier: Apache-2.0
"""Resume a broken run: from its newest complete checkpoint whose step is in the log, with logs cut at that step.

A run may be killed at any time: while verl writes its tracker file, a checkpoint or a line of a log, or between a
checkpoint and the line of its step. Everything after the step to resume from is removed and done again, so each log has
each step once.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sam_core.files import replacing

from llm_rl.errors import UserError
from llm_rl.steps import TIMES

TRACKER = "latest_checkpointed_iteration.txt"
TOKENS = "rollout/spec/tokens"


def read_steps(path: Path) -> list[dict]:
    """The training steps in verl's step log, each with what all complete lines of its number say.

    A trainer may log in parts, and before its first step. Raises UserError if a line is not JSON.
    """
    steps: dict[int, dict] = {}
    for _, row in _complete_lines(path):
        steps.setdefault(row["step"], {"step": row["step"], "data": {}})["data"].update(row["data"])
    return [step for step in steps.values() if TIMES in step["data"]]


def complete(checkpoints: Path) -> list[int]:
    """Steps with a complete checkpoint, in order: verl writes data.pt after the actor's files."""
    steps = []
    for folder in checkpoints.glob("global_step_*"):
        number = folder.name.removeprefix("global_step_")
        actor = folder / "actor"
        if number.isdecimal() and zipfile.is_zipfile(folder / "data.pt") and actor.is_dir() and any(actor.iterdir()):
            steps.append(int(number))
    return sorted(steps)


def point(run_dir: Path, every: int) -> int:
    """The step after which a run resumes, 0: from its start.

    every: training steps between checkpoints; 0: no checkpoints. Raises UserError if log and checkpoints do not belong
    together.
    """
    logged = 0
    for step in read_steps(run_dir / "steps.jsonl"):
        if step["step"] != logged + 1:
            break
        logged += 1
    steps = complete(run_dir / "checkpoints")
    if steps and not every:
        raise UserError(
            f"{run_dir} has a checkpoint of step {steps[-1]}, which a run without checkpoints would remove: "
            "set checkpoints.every to go on from it, or take another --run-dir"
        )
    if steps and steps[-1] > logged + every:
        raise UserError(
            f"{run_dir} has a checkpoint of step {steps[-1]}, and its steps.jsonl ends at step {logged}: put the log "
            "back, or take another --run-dir"
        )
    return max((step for step in steps if step <= logged), default=0)


def rewind(run_dir: Path, step: int, keep: int) -> None:
    """Cut the logs after `step`, remove checkpoints and rewrite verl's tracker.

    Of the checkpoints stay the `keep` newest complete ones that are not later than `step`. The engines' history stays,
    unless the run starts from step 0. A second call changes nothing.
    """
    steps = read_steps(run_dir / "steps.jsonl")[:step]
    _truncate_engine_logs(run_dir, sum(entry["data"].get(TOKENS, 0) for entry in steps))
    for path in run_dir.glob("answers-*.jsonl"):
        _write(path, [line for line, answer in _complete_lines(path) if answer[0] <= step])
    log = run_dir / "steps.jsonl"
    _write(log, [line for line, entry in _complete_lines(log) if step and entry["step"] <= step])
    checkpoints = run_dir / "checkpoints"
    stay = [n for n in complete(checkpoints) if n <= step][-keep:]
    for folder in checkpoints.glob("global_step_*"):
        if folder.name not in {f"global_step_{n}" for n in stay}:
            aside = folder.with_name(re.sub("^global_step", "removed", folder.name))
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)  # so that a kill during the removal leaves nothing that looks complete
    for folder in checkpoints.glob("removed_*"):
        shutil.rmtree(folder, ignore_errors=True)
    if step:
        _write(checkpoints / TRACKER, [str(step)], end="")
    else:
        (checkpoints / TRACKER).unlink(missing_ok=True)
        _empty(run_dir / "history")  # a run from the start must not profit from the one before


def _empty(history: Path) -> None:
    """Remove all files but locks, which an engine of the previous run may still hold."""
    for path in history.rglob("*"):
        if path.is_file() and path.name != "lock":
            path.unlink(missing_ok=True)


def _truncate_engine_logs(run_dir: Path, tokens: int) -> None:
    """Keep the engine steps of all replicas up to `tokens` tokens, in order of time.

    They are those of the training steps that stay. In a row, item 0 is the time and item 3 the tokens. No replica
    generates between two training steps.
    """
    files = {path: list(_complete_lines(path)) for path in sorted(run_dir.glob("engine-*.jsonl"))}
    rows = sorted((row[0], path, i, row[3]) for path, lines in files.items() for i, (_, row) in enumerate(lines))
    kept, count = dict.fromkeys(files, 0), 0
    for _, path, i, of_row in rows:
        if count >= tokens:
            break
        count += of_row
        kept[path] = i + 1
    for path, lines in files.items():
        _write(path, [line for line, _ in lines[: kept[path]]])


def _complete_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Lines up to the last newline, with their JSON; a kill can leave an incomplete one after it. Raises UserError."""
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            yield line, json.loads(line)
        except ValueError:
            raise UserError(f"{path}, line {number}, is not JSON: repair it, or take another --run-dir") from None


def _write(path: Path, lines: list[str], end: str = "\n") -> None:
    """Replace a log, or remove it if no line is left."""
    if not lines:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        temporary.write_text(end.join(lines) + end)
