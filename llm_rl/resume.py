# SPDX-License-Identifier: Apache-2.0
"""Resume an interrupted run from its newest complete checkpoint whose step is logged, and cut the logs at that step.

A checkpoint is complete if it has the files of all ranks, the kinds of files that other checkpoints of the run have,
and the file that verl writes last.

A run may be killed at any time: while verl writes its tracker file, a checkpoint or a line of a log, or between a
checkpoint and the line of its step. Everything after the step to resume from is removed and repeated, so each log has
each step once.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from sam_core.files import replacing

from llm_rl.errors import UserError
from llm_rl.steps import complete_lines, read_steps

TRACKER = "latest_checkpointed_iteration.txt"
TOKENS = "rollout/spec/tokens"
SHARD = re.compile(r"actor/(model|optim|extra_state)_world_size_(\d+)_rank_\d+\.pt")
"""FSDP's files: one of each kind per rank."""
MEGATRON = re.compile(
    r"actor/(ckpt_contents\.json|(\w+/)?dist_ckpt/(\.metadata|metadata\.json)"
    r"|(model/)?huggingface/(config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?))"
)
"""Megatron's files except its shards; since verl 0.9.1 they are in folders of actor/. The weights are in huggingface/,
whose index may name files that verl never writes."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder global_step_N.

    missing: a missing file, None if it is complete; finished: whether it has the file that verl writes last; ranks:
    number of FSDP ranks that wrote it, None without FSDP's files.
    """

    step: int
    missing: str | None
    finished: bool
    ranks: int | None


def checkpoints(run_dir: Path) -> list[Checkpoint]:
    """The checkpoints of a run, in order of their steps.

    Their files depend on verl's release and settings but not on the step, so each needs the kinds of files that any
    other has. verl writes data.pt last, and keeps data.pt when it removes an old checkpoint.
    """
    folders = {
        int(number): path
        for path in (run_dir / "checkpoints").glob("global_step_*")
        if (number := path.name.removeprefix("global_step_")).isdecimal()
    }
    names = {
        step: [path.relative_to(folder).as_posix() for path in folder.glob("actor/**/*")]
        for step, folder in folders.items()
        if _whole(folder / "data.pt")
    }
    every = [name for of_one in names.values() for name in of_one]
    kinds = sorted({shard[1] for shard in _shards(every)})
    others = set() if kinds else {name for name in every if MEGATRON.fullmatch(name)}
    return [_read(step, folders[step], names.get(step), kinds, others) for step in sorted(folders)]


def _read(step: int, folder: Path, names: list[str] | None, kinds: list[str], others: set[str]) -> Checkpoint:
    """Read a checkpoint.

    names: its files, None if it is not finished; kinds: kinds of FSDP's files that it needs; others: other files that
    it needs.
    """
    if names is None:
        return Checkpoint(step, "data.pt", False, None)
    ranks = max((int(shard[2]) for shard in _shards(names)), default=None)
    needed = [f"actor/{kind}_world_size_{ranks or 1}_rank_{n}.pt" for kind in kinds for n in range(ranks or 1)]
    if not kinds:
        parts = {name.rpartition("/")[0] for name in names if name.endswith((".distcp", "/.metadata"))}
        needed = sorted(others | {f"{part}/.metadata" for part in parts})
        needed += [shard for part in sorted(parts) for shard in _of_megatron(folder, part)]
    missing = next((name for name in needed if not _whole(folder / name)), None) if names else "actor"
    return Checkpoint(step, missing, True, ranks)


def _shards(names: list[str]) -> list[re.Match]:
    return [shard for name in names if (shard := SHARD.fullmatch(name))]


def _of_megatron(folder: Path, part: str) -> list[str]:
    """The shards that the index of one of Megatron's folders names."""
    index = folder / part / ".metadata"
    names = set(re.findall(rb"__\d+_\d+\.distcp", index.read_bytes())) if index.is_file() else set()
    return [f"{part}/{name.decode()}" for name in sorted(names)]


def _whole(path: Path) -> bool:
    """Whether a file exists and, if its format can tell, is not truncated.

    Raises OSError if it cannot be read: it may still be intact, so nothing must be removed.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if path.suffix == ".pt":
            zipfile.ZipFile(path).close()  # a file of torch.save ends with a table of contents
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="np"):  # compares the length with the header
                pass
        else:
            path.stat()
    except (FileNotFoundError, NotADirectoryError, zipfile.BadZipFile, SafetensorError):
        return False
    return True


def incomplete(found: list[Checkpoint], after: int) -> list[str]:
    """A sentence for each incomplete checkpoint after step `after`."""
    return [
        f"the checkpoint of step {checkpoint.step} is not complete: it lacks {checkpoint.missing}"
        for checkpoint in found
        if checkpoint.step > after and checkpoint.missing
    ]


def point(run_dir: Path, found: list[Checkpoint], every: int, ranks: int | None = None) -> int:
    """The step after which a run resumes; 0: from the start.

    found: the run's checkpoints; every: training steps between checkpoints, 0: no checkpoints; ranks: devices that
    train with FSDP, None with Megatron.
    Raises UserError if log and checkpoints do not belong together, or if the run cannot resume and would lose steps.
    """
    logged = 0
    for step in read_steps(run_dir / "steps.jsonl"):
        if step["step"] != logged + 1:
            break
        logged += 1
    finished = [checkpoint for checkpoint in found if checkpoint.finished]
    usable = [checkpoint for checkpoint in finished if not checkpoint.missing]
    if finished and not every:
        raise UserError(
            f"{run_dir} has a checkpoint of step {finished[-1].step}, which a run without checkpoints would remove: "
            "set checkpoints.every to resume from it, or use another --run-dir"
        )
    if usable and usable[-1].step > logged + every:
        raise UserError(
            f"{run_dir} has a checkpoint of step {usable[-1].step}, but its steps.jsonl ends at step {logged}: restore "
            "the log, or use another --run-dir"
        )
    usable = [checkpoint for checkpoint in usable if checkpoint.step <= logged]
    if finished and not usable and (lost := finished[-1]).missing:
        raise UserError(
            f"{run_dir} has no complete checkpoint, as that of step {lost.step} lacks {lost.missing}: restore this "
            "file (all hosts must share the run's folder), or use another --run-dir"
        )
    if not usable:
        return 0
    newest = usable[-1]
    if ranks and newest.ranks not in (None, ranks):
        raise UserError(
            f"{run_dir} has an FSDP checkpoint of world size {newest.ranks}, which the recipe's world size {ranks} "
            f"cannot load: set cluster.nodes x cluster.dies_per_node to {newest.ranks}, or use another --run-dir"
        )
    return newest.step


def rewind(run_dir: Path, found: list[Checkpoint], step: int, keep: int) -> None:
    """Cut the logs after `step`, remove checkpoints and rewrite verl's tracker.

    Keeps the `keep` newest complete checkpoints up to `step`, and the engines' history unless `step` is 0. A second
    call changes nothing.
    """
    steps = read_steps(run_dir / "steps.jsonl")[:step]
    _truncate_engine_logs(run_dir, sum(entry["data"].get(TOKENS, 0) for entry in steps))
    for path in run_dir.glob("answers-*.jsonl"):
        _write(path, [line for line, answer in complete_lines(path) if answer[0] <= step])
    log = run_dir / "steps.jsonl"
    _write(log, [line for line, entry in complete_lines(log) if step and entry["step"] <= step])
    saved = run_dir / "checkpoints"
    stay = [checkpoint.step for checkpoint in found if checkpoint.step <= step and not checkpoint.missing][-keep:]
    for folder in saved.glob("global_step_*"):
        if folder.name not in {f"global_step_{n}" for n in stay}:
            aside = folder.with_name(re.sub("^global_step", "removed", folder.name))
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)  # if killed during the removal, nothing looks complete
    for folder in saved.glob("removed_*"):
        shutil.rmtree(folder, ignore_errors=True)
    if step:
        _write(saved / TRACKER, [str(step)], end="")
    else:
        (saved / TRACKER).unlink(missing_ok=True)
        _empty(run_dir / "history")  # a run from the start must not profit from an earlier one


def _empty(history: Path) -> None:
    """Remove all files except locks, which an engine of the previous run may still hold."""
    for path in history.rglob("*"):
        if path.is_file() and path.name != "lock":
            path.unlink(missing_ok=True)


def _truncate_engine_logs(run_dir: Path, tokens: int) -> None:
    """Keep the first engine steps of all replicas, in order of time, that together have `tokens` tokens.

    These belong to the training steps that are kept, as no replica generates between two training steps. Item 0 of a
    row is the time, item 3 the tokens.
    """
    files = {path: list(complete_lines(path)) for path in sorted(run_dir.glob("engine-*.jsonl"))}
    rows = sorted((row[0], path, i, row[3]) for path, lines in files.items() for i, (_, row) in enumerate(lines))
    kept, count = dict.fromkeys(files, 0), 0
    for _, path, i, of_row in rows:
        if count >= tokens:
            break
        count += of_row
        kept[path] = i + 1
    for path, lines in files.items():
        _write(path, [line for line, _ in lines[: kept[path]]])


def _write(path: Path, lines: list[str], end: str = "\n") -> None:
    """Replace a log, or remove it if no line is left."""
    if not lines:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        temporary.write_text(end.join(lines) + end)
