# SPDX-License-Identifier: Apache-2.0
"""Resume a broken run: from its newest complete checkpoint whose step is in the log, with logs cut at that step.

A checkpoint is complete when it has the files of all ranks, and the file that verl writes last.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sam_core.files import replacing

from llm_rl.errors import UserError
from llm_rl.steps import TIMES, numbers

TRACKER = "latest_checkpointed_iteration.txt"
TOKENS = "rollout/spec/tokens"
SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d+)_rank_\d+\.pt")
"""Files of FSDP's checkpoints."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder global_step_N.

    missing: a file that it lacks, None if it is complete; finished: whether it has the file that verl writes last;
    ranks: how many wrote it with FSDP, None with Megatron.
    """

    step: int
    missing: str | None
    finished: bool
    ranks: int | None


def read_steps(path: Path) -> list[dict]:
    """The training steps in verl's step log, each with all numbers in the complete lines of its step.

    A trainer may log in parts, and before its first step. Raises UserError if a line is not verl's.
    """
    steps: dict[int, dict] = {}
    ended = set()
    for number, (_, row) in enumerate(_complete_lines(path), 1):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int) or not isinstance(row.get("data"), dict):
            raise UserError(f"{path}, line {number}, is not a line of verl's log: repair it, or take another --run-dir")
        steps.setdefault(row["step"], {"step": row["step"], "data": {}})["data"].update(numbers(row["data"]))
        if TIMES in row["data"]:
            ended.add(row["step"])
    return [step for step in steps.values() if step["step"] in ended]


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, in order of their steps."""
    found = {
        int(number): path
        for path in folder.glob("global_step_*")
        if (number := path.name.removeprefix("global_step_")).isdecimal()
    }
    kinds = {
        role: {shard[1] for path in found.values() for shard in _shards(path / role)} or {"model"}
        for role in ("actor", "critic")
    }
    return [_read(step, found[step], kinds) for step in sorted(found)]


def _shards(folder: Path) -> list[re.Match]:
    return [shard for path in folder.glob("*.pt") if (shard := SHARD.fullmatch(path.name))]


def _read(step: int, folder: Path, kinds: dict[str, set[str]]) -> Checkpoint:
    """Read a checkpoint; kinds: the kinds of FSDP's files in the run's checkpoints, for actor and critic.

    verl writes data.pt after all files of actor and critic. If Megatron saves in the background, another comes last:
    ckpt_contents.json in verl 0.9.1, metadata.json in verl 0.6.1. verl removes an old checkpoint except for data.pt.
    """
    last, files, ranks = [folder / "data.pt"], [], None
    for role in ["actor", *(path.name for path in folder.glob("critic"))]:
        place = folder / role
        if next(place.rglob("dist_ckpt"), None):
            old = place / "dist_ckpt"
            last.append(old / "metadata.json" if old.is_dir() else place / "ckpt_contents.json")
            for path in [old] if old.is_dir() else _listed(last[-1]):
                files += _of_megatron(path) if path.name == "dist_ckpt" else [path]
        else:
            ranks = max((int(shard[2]) for shard in _shards(place)), default=1)
            names = (f"{kind}_world_size_{ranks}_rank_{n}.pt" for kind in sorted(kinds[role]) for n in range(ranks))
            files += [place / name for name in names]
    unfinished = [path for path in last if not _whole(path)]
    missing = next((str(path.relative_to(folder)) for path in [*unfinished, *files] if not _whole(path)), None)
    return Checkpoint(step, missing, not unfinished, ranks)


def _listed(manifest: Path) -> list[Path]:
    """Files and folders that verl 0.9.1 names in ckpt_contents.json."""
    try:
        return [manifest.parent / entry["path"] for entry in json.loads(manifest.read_text())["contents"].values()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _of_megatron(part: Path) -> list[Path]:
    """The index of a folder of shards, and the shards that it names."""
    index = part / ".metadata"
    names = set(re.findall(rb"__\d+_\d+\.distcp", index.read_bytes())) if index.is_file() else set()
    return [index, *(part / name.decode() for name in sorted(names))]


def _whole(path: Path) -> bool:
    """Whether a path is there; a file that torch.save wrote ends in a table of contents."""
    return zipfile.is_zipfile(path) if path.suffix == ".pt" else path.exists()


def complete(folder: Path) -> list[int]:
    """Steps with a complete checkpoint, in order."""
    return [found.step for found in checkpoints(folder) if not found.missing]


def incomplete(run_dir: Path, after: int) -> list[str]:
    """A sentence for each incomplete checkpoint of a step after `after`."""
    found = (checkpoint for checkpoint in checkpoints(run_dir / "checkpoints") if checkpoint.step > after)
    return [f"the checkpoint of step {c.step} is not complete: it lacks {c.missing}" for c in found if c.missing]


def point(run_dir: Path, every: int, ranks: int | None = None) -> int:
    """The step after which a run resumes, 0: from its start.

    every: training steps between checkpoints, 0: no checkpoints; ranks: dies that train with FSDP, None with Megatron.
    Raises UserError if log and checkpoints do not belong together, or if the run cannot resume and would lose steps.
    """
    logged = 0
    for step in read_steps(run_dir / "steps.jsonl"):
        if step["step"] != logged + 1:
            break
        logged += 1
    found = checkpoints(run_dir / "checkpoints")
    finished = [checkpoint for checkpoint in found if checkpoint.finished]
    usable = [checkpoint for checkpoint in finished if not checkpoint.missing]
    if finished and not every:
        raise UserError(
            f"{run_dir} has a checkpoint of step {finished[-1].step}, which a run without checkpoints would remove: "
            "set checkpoints.every to go on from it, or take another --run-dir"
        )
    if usable and usable[-1].step > logged + every:
        raise UserError(
            f"{run_dir} has a checkpoint of step {usable[-1].step}, but its steps.jsonl ends at step {logged}: put the "
            "log back, or take another --run-dir"
        )
    usable = [checkpoint for checkpoint in usable if checkpoint.step <= logged]
    if finished and not usable and (lost := finished[-1]).missing:
        raise UserError(
            f"{run_dir} has no complete checkpoint, as that of step {lost.step} lacks {lost.missing}: put it back (all "
            "hosts must share the run's folder), or take another --run-dir"
        )
    if not usable:
        return 0
    newest = usable[-1]
    if ranks and newest.ranks not in (None, ranks):
        raise UserError(
            f"{run_dir} has an FSDP checkpoint of world size {newest.ranks}, which the recipe's world size {ranks} "
            "cannot load: set cluster.nodes and cluster.dies_per_node as they were, or take another --run-dir"
        )
    return newest.step


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
    saved = run_dir / "checkpoints"
    stay = [n for n in complete(saved) if n <= step][-keep:]
    for folder in saved.glob("global_step_*"):
        if folder.name not in {f"global_step_{n}" for n in stay}:
            aside = folder.with_name(re.sub("^global_step", "removed", folder.name))
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)  # so that a kill during the removal leaves nothing that looks complete
    for folder in saved.glob("removed_*"):
        shutil.rmtree(folder, ignore_errors=True)
    if step:
        _write(saved / TRACKER, [str(step)], end="")
    else:
        (saved / TRACKER).unlink(missing_ok=True)
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
