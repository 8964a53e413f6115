# SPDX-License-Identifier: Apache-2.0
"""Watch a training process: print its steps, stop it in bounded time, find a failure's cause, and summarize the run."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from llm_rl import load
from llm_rl.errors import UserError
from llm_rl.recipe import Recipe
from llm_rl.steps import mean, read_steps, round_seconds, step_seconds

SPEC = "rollout/spec/"
ADVICE = "sync_refill_failed_groups"
"""Part of verl's advice when all answers of a step have failed; the log has the cause before the advice."""
LOOK = 10.0
"""Seconds between two looks for progress."""
WAITS = {
    "its turn has come": "the first step",
    "waits for its turn": "its turn",
    "Training Progress:": "the first step",
    "(vLLMHttpServer ": "the engine",
    "TaskRunner": "the trainer",
    "": "Ray",
}
"""What a start waits for, by the text that verl, Ray or llm_rl.turns has logged; the latest text comes first."""
QUIETER = 3
"""Maximum factor by which the time without generation may exceed that of earlier steps."""
LATE = re.compile(r"The current node timed out during startup|Timed out waiting for file \S*gcs_server_port")
"""Pattern of Ray's errors when Ray did not start in time."""


def follow(
    process: subprocess.Popen,
    steps_file: Path,
    total: int,
    timeout: float,
    loads: dict[str, dict[str, float]],
    publish: Callable[[list[dict]], None],
    hang: float = math.inf,
) -> str | None:
    """Print a line for each training step as the trainer logs it, until the process ends. Before the first step, print
    every LOOK seconds what the start waits for.

    Adds the machine's load during each step (load.Load.take) to `loads`, by step number. Calls `publish` repeatedly,
    with all steps when the log has grown, else with none. Errors of the display only cause warnings.

    Returns None, or one sentence if a step took more than `timeout` seconds, or made no progress for `hang` seconds;
    the caller then ends the process.
    """
    size = steps_file.stat().st_size if steps_file.is_file() else 0
    printed = len(read_steps(steps_file))
    log = steps_file.with_name("verl.log")
    begin = log.stat().st_size if log.is_file() else 0
    start = last = said = time.monotonic()
    attempt = _attempts()
    attempt(_print, "  starting Ray, the engine and the trainer")
    meter = attempt(load.Load, process.pid)
    quiet, watch = 0.0, Activity(steps_file.parent)
    while True:
        ended = process.poll() is not None
        before, size = size, steps_file.stat().st_size if steps_file.is_file() else 0
        steps = attempt(read_steps, steps_file) if size != before else []
        if steps is None:  # the log has grown and cannot be read
            steps, last = [], time.monotonic()
        attempt(publish, steps)
        if meter:
            attempt(meter.sample)
        for step in steps[printed:]:
            last = time.monotonic()
            quiet = max(quiet, _quiet(step["data"]))
            if meter and (shares := attempt(meter.take)):
                loads[str(step["step"])] = shares
            attempt(_print_step, step, total, last - start, loads.get(str(step["step"])))
        printed = max(printed, len(steps))
        if ended:
            return None
        if last == start and time.monotonic() - said >= LOOK:
            said = time.monotonic()
            attempt(_print_wait, log, begin, said - start)
        if time.monotonic() - last > timeout:
            return f"no step was finished in {timeout:.0f} s (trainer.step_timeout) after step {printed} of {total}"
        limit = max(hang, QUIETER * quiet)
        # The first step also starts the engines and loads a checkpoint.
        if last > start and (silent := watch.silent()) > limit:
            return (
                f"no engine made a step and no checkpoint grew for {silent:.0f} s (limit {limit:.0f} s, "
                f"trainer.hang_timeout) after step {printed} of {total}"
            )
        time.sleep(0.5)


class Activity:
    """When a run's folder last showed progress: by the times of its engines' logs, step log and checkpoints."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._newest = 0.0
        self._looked = self._changed = -math.inf

    def silent(self) -> float:
        """Seconds without progress; 0 where no engine writes a log. Looks into the folder every LOOK seconds."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            newest = self._read()
            if newest != self._newest:
                self._newest, self._changed = newest, now
        return now - self._changed if self._newest else 0.0

    def _read(self) -> float:
        """Time of the newest change; 0 without logs of engines."""
        engines = list(self.run_dir.glob("engine-*.jsonl"))
        paths = [*engines, self.run_dir / "steps.jsonl", *self.run_dir.glob("checkpoints/**/*")]
        times = []
        for path in paths if engines else []:
            with contextlib.suppress(OSError):  # checkpoints come and go
                times.append(path.stat().st_mtime)
        return max(times, default=0.0)


def _quiet(data: dict) -> float:
    """Seconds of a step in which no engine generates."""
    times = [data.get(f"timing_s/{name}", 0.0) for name in ("step", "gen", "save_checkpoint")]
    return max(times[0] - times[1], 0.0) + times[2]


def _attempts() -> Callable[..., Any]:
    """Return a function that calls another one and prints each error once as a warning: the display stops no run."""
    said = set()

    def attempt(what: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return what(*arguments)
        except Exception as e:
            problem = str(e) if isinstance(e, UserError) else f"{type(e).__name__}: {e}"
            if problem not in said:
                said.add(problem)
                with contextlib.suppress(OSError):  # the output itself may be closed or full
                    _print(f"  warning: {problem}; the run goes on")
        return None

    return attempt


def _print(line: str) -> None:
    print(line, flush=True)


def _print_wait(log: Path, begin: int, seconds: float) -> None:
    text = _read(log, begin)
    _print(f"  {seconds:5.0f} s  waits for: {next(what for logged, what in WAITS.items() if logged in text)}")


def _print_step(step: dict, total: int, seconds: float, shares: dict[str, float] | None) -> None:
    data = step["data"]

    def shown(name: str, form: str) -> str:
        return format(data[name], form) if name in data else "-"

    line = f"  step {step['step']}/{total}  {seconds:5.0f} s  rollout {shown('timing_s/gen', '.1f')} s"
    line += f"  step {shown('timing_s/step', '.1f')} s"
    line += f"  {shown(SPEC + 'tokens_per_step', '.2f')} tokens per request and step"
    line += f"  reward {shown('critic/rewards/mean', '+.2f')}  length {shown('response_length/mean', '.0f')}"
    if shares and load.busy(shares):
        line += f"  (busy machine: others {shares['others']:.0%}, steal {shares['steal']:.0%})"
    _print(line)


def stop(process: subprocess.Popen) -> None:
    """End the run's process group, including the driver's helpers; Ray's own processes end with their parents."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
    try:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            process.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            deadline = time.monotonic() + 20
            while _lives(process.pid) and time.monotonic() < deadline:
                time.sleep(0.2)
                process.poll()
        process.wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)


def _lives(group: int) -> bool:
    """Whether a process group has a running member; zombies do not count, as PID 1 may never reap them."""
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
        except ProcessLookupError:
            pass
    return False


def failure(recipe: Recipe, steps: list[dict], code: int, log: Path, begin: int = 0) -> str | None:
    """Why a run must not count as a success, in one sentence, or None. begin: offset of the run in the log."""
    if code or len(steps) < recipe.steps:
        reason = cause(log, begin)
        return f"verl ended with status {code} after {len(steps)} of {recipe.steps} steps: {reason}; see {log}"
    drafted = sum(step["data"].get(SPEC + "drafted", 0) for step in steps)
    if recipe.sam != "off" and drafted == 0:
        never = {
            "batch": f"never had at most {recipe.options.threshold} requests running",
            "auto": "never had a draft that pays off (sam=batch drafts anyway)",
        }
        return (
            f"speculation was requested (sam={recipe.sam}) but no draft was verified in {len(steps)} steps: "
            f"the engine ran without it, or {never[recipe.sam]}; see {log}"
        )
    if recipe.sam == "off" and drafted:
        return (
            f"sam=off, but {drafted:.0f} draft tokens were verified: the engine's configuration does not match; "
            f"see {log}"
        )
    return None


def cause(log: Path, begin: int = 0) -> str:
    """The message of the last exception in a log of Ray actors, whose lines contain colours and the actor's name.

    If verl gave ADVICE: the last exception before it, or the one about a data source without a reward.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", _read(log, begin))
    errors = re.findall(r"^(?:\(.*?pid=.*?\) )?((?:\w+\.)*\w*(?:Error|Exception)\b:? .*)", plain, re.MULTILINE)
    named = [e for e in errors if not e.startswith("ray.exceptions.")]
    if advice := [i for i, error in enumerate(named) if ADVICE in error]:
        before = named[: advice[0]]
        named = [e for e in before if e.startswith("NotImplementedError")][:1] or before or named
    return (named or errors or ["no exception was logged"])[-1].strip()


def started_late(log: Path, begin: int) -> bool:
    """Whether the log says that Ray did not start in time."""
    return bool(LATE.search(_read(log, begin)))


def _read(log: Path, begin: int) -> str:
    with log.open("rb") as f:
        f.seek(begin)
        return f.read().decode(errors="replace")


def summarize(steps: list[dict]) -> dict[str, Any]:
    """Means and sums over a run's steps, times in seconds.

    The first step starts the engine, so it counts only if it is the only one. The time of a step excludes writing its
    checkpoint. A trainer without rounds of generation has no `round_s`.
    """
    rest = [step["data"] for step in steps[1:] or steps]

    def total(name: str) -> float:
        return sum(data.get(SPEC + name, 0) for data in rest)

    summary: dict[str, Any] = {
        "rollout_s": mean(data.get("timing_s/gen") for data in rest),
        "step_s": mean(map(step_seconds, rest)),
        "reward": mean(data.get("critic/rewards/mean") for data in rest),
        "length": mean(data.get("response_length/mean") for data in rest),
        **{name: total(name) for name in ("tokens", "request_steps", "drafted", "accepted", "tail_s")},
    }
    if (round_s := mean(map(round_seconds, rest))) is not None:
        summary["round_s"] = round_s
    return summary


def table(summary: dict[str, Any], steps: int) -> list[str]:
    """The lines of a summary for the terminal."""
    rows = [
        ("rollout, s per step", "rollout_s", ".1f"),
        ("rollout, s per round", "round_s", ".1f"),
        ("step, s", "step_s", ".1f"),
        ("reward", "reward", "+.3f"),
        ("answer, tokens", "length", ".0f"),
        ("tokens generated", "tokens", ",.0f"),
        ("draft tokens verified", "drafted", ",.0f"),
        ("draft tokens accepted", "accepted", ",.0f"),
        ("tail, s in total", "tail_s", ".1f"),
    ]
    lines = [f"{what:<28}{summary[name]:{form}}" for what, name, form in rows if summary.get(name) is not None]
    if summary["request_steps"]:
        lines.append(f"{'tokens per request and step':<28}{summary['tokens'] / summary['request_steps']:.3f}")
    return [f"training steps {2 if steps > 1 else 1} to {steps}:", *(f"  {line}" for line in lines)]
