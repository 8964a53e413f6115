# SPDX-License-Identifier: Apache-2.0
"""Watch a training process: its steps as they are logged, its end in bounded time, why it failed, what it did."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig

from llm_rl import load
from llm_rl.resume import read_steps

SPEC = "rollout/spec/"


def follow(
    process: subprocess.Popen, steps_file: Path, total: int, timeout: float, loads: dict[str, dict[str, float]]
) -> str | None:
    """Print a line for each training step as the trainer logs it, until the process ends.

    `loads` gets what load.Load found in each step, by its number.

    Returns why it was given up, in one sentence, if it took more than `timeout` seconds for a step; the caller ends it.
    """
    meter = load.Load(process.pid)
    size = steps_file.stat().st_size if steps_file.is_file() else 0
    seen = len(read_steps(steps_file))
    start = last = time.monotonic()
    print("  starting Ray, the engine and the trainer", flush=True)
    while True:
        ended = process.poll() is not None
        before, size = size, steps_file.stat().st_size if steps_file.is_file() else 0
        steps = read_steps(steps_file) if size != before else []
        meter.sample()
        for step in steps[seen:]:
            last = time.monotonic()
            loads[str(step["step"])] = found = meter.take()
            data = collections.defaultdict(lambda: float("nan"), step["data"])
            print(
                f"  step {step['step']}/{total}  {last - start:5.0f} s  rollout {data['timing_s/gen']:.1f} s"
                f"  step {data['timing_s/step']:.1f} s  {data[SPEC + 'tokens_per_step']:.2f} tokens a step"
                f"  reward {data['critic/rewards/mean']:+.2f}  length {data['response_length/mean']:.0f}"
                + (f"  (busy machine: others {found['others']:.0%}, steal {found['steal']:.0%})" * load.busy(found)),
                flush=True,
            )
        seen = max(seen, len(steps))
        if ended:
            return None
        if time.monotonic() - last > timeout:
            return f"no step was finished in {timeout:.0f} s (trainer.step_timeout) after step {seen} of {total}"
        time.sleep(0.5)


def stop(process: subprocess.Popen) -> None:
    """End the run's process group, the driver's helpers included; Ray's own processes end with their parents."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
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
    """Whether a process group has a member that runs; where PID 1 reaps late or never, ended ones stay as zombies."""
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
        except ProcessLookupError:
            pass
    return False


def failure(config: DictConfig, steps: list[dict], code: int, log: Path, begin: int = 0) -> str | None:
    """Why a run must not count as a success, in one sentence, or None. `begin`: where its part of the log begins."""
    if code or len(steps) < config.steps:
        why = cause(log, begin)
        return f"verl ended with status {code} after {len(steps)} of {config.steps} steps: {why}; see {log}"
    drafted = sum(step["data"].get(SPEC + "drafted", 0) for step in steps)
    if config.sam != "off" and drafted == 0:
        never = {
            "batch": f"never had at most {config.sam_options.threshold} requests running",
            "auto": "never had a draft that pays (sam=batch drafts all the same)",
        }
        return (
            f"speculation was asked for (sam={config.sam}) but no draft was verified in {len(steps)} steps: "
            f"the engine ran without it, or {never[config.sam]}; see {log}"
        )
    if config.sam == "off" and drafted:
        return f"sam=off, but {drafted:.0f} draft tokens were verified: the engine's configuration does not match; see {log}"
    return None


def cause(log: Path, begin: int = 0) -> str:
    """The last exception's message in a log of Ray actors, whose lines carry colours and the actor's name."""
    with log.open("rb") as f:
        f.seek(begin)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", f.read().decode(errors="replace"))
    errors = re.findall(r"^(?:\(.*?pid=.*?\) )?((?:\w+\.)*\w*(?:Error|Exception)\b:? .*)", plain, re.MULTILINE)
    named = [e for e in errors if not e.startswith("ray.exceptions.")]
    return (named or errors or ["no exception was logged"])[-1].strip()


def summarize(steps: list[dict]) -> dict[str, Any]:
    """What the run did, times in seconds; means leave the first step out, which starts the engine, where there are others.

    A step's time is without the writing of its checkpoint, and a round's is there where the trainer has rounds (verl
    0.6.1).
    """
    rest = [step["data"] for step in steps[1:] or steps]

    def mean(of: list[float]) -> float | None:
        return sum(of) / len(of) if of else None

    def total(name: str) -> float:
        return sum(data.get(SPEC + name, 0) for data in rest)

    newer = not any("train/num_gen_batches" in data for data in rest)  # verl 0.9.1 times the checkpoint within the step
    saved = "timing_s/save_checkpoint"
    summary: dict[str, Any] = {
        "rollout_s": mean([data["timing_s/gen"] for data in rest if "timing_s/gen" in data]),
        "step_s": mean([d["timing_s/step"] - newer * d.get(saved, 0) for d in rest if "timing_s/step" in d]),
        "reward": mean([data["critic/rewards/mean"] for data in rest if "critic/rewards/mean" in data]),
        "length": mean([data["response_length/mean"] for data in rest if "response_length/mean" in data]),
        **{name: total(name) for name in ("tokens", "request_steps", "drafted", "accepted", "tail_s")},
    }
    if not newer:
        rounds = sum(data["train/num_gen_batches"] for data in rest)
        summary["round_s"] = sum(data["timing_s/gen"] for data in rest) / rounds
    return summary


def table(summary: dict[str, Any], steps: int) -> list[str]:
    """A summary's lines for the terminal."""
    rows = [
        ("rollout, s a step", "rollout_s", ".1f"),
        ("rollout, s a round", "round_s", ".1f"),
        ("step, s", "step_s", ".1f"),
        ("reward", "reward", "+.3f"),
        ("answer, tokens", "length", ".0f"),
        ("tokens generated", "tokens", ",.0f"),
        ("draft tokens verified", "drafted", ",.0f"),
        ("draft tokens accepted", "accepted", ",.0f"),
        ("tail, s in all", "tail_s", ".1f"),
    ]
    lines = [f"{what:<24}{summary[name]:{form}}" for what, name, form in rows if summary.get(name) is not None]
    if summary["request_steps"]:
        lines.append(f"{'tokens a step':<24}{summary['tokens'] / summary['request_steps']:.3f}")
    return [f"training steps {2 if steps > 1 else 1} to {steps}:", *(f"  {line}" for line in lines)]
