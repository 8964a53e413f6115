# SPDX-License-Identifier: Apache-2.0
"""Run a recipe: check, print what will run, train under verl, follow the step log, and say how it ended."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf

from llm_rl import config as recipe

ROOT = Path(__file__).resolve().parent.parent


class LaunchError(RuntimeError):
    """One sentence: why a run was not started, or how it failed."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.launch",
        description="Run a recipe under the patched verl and vLLM of its pin set.",
        epilog="Overrides: sam=off, seed=2, steps=10, sam_options.k=4, verl.trainer.test_freq=5 ...",
    )
    parser.add_argument("config", type=Path, help="the recipe's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that replace those of the file")
    parser.add_argument("--run-dir", type=Path, help="folder for logs and results (default: runs/<name>-sam-<switch>)")
    parser.add_argument("--dry-run", action="store_true", help="print the verl command and stop")
    args = parser.parse_args(argv)
    try:
        config = recipe.load(args.config, args.overrides)
        run_dir = (args.run_dir or ROOT / "runs" / f"{config.name}-sam-{config.sam}").resolve()
        if args.dry_run:
            print(shlex.join(command(config, run_dir)))
            return 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
        run(config, run_dir)
    except (recipe.ConfigError, LaunchError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the run and what it had started are ended", file=sys.stderr)
        return 130
    return 0


def command(config: DictConfig, run_dir: Path) -> list[str]:
    return [sys.executable, "-m", "verl.trainer.main_ppo", *recipe.verl_overrides(config, run_dir)]


def run(config: DictConfig, run_dir: Path) -> None:
    """Train as `config` says; everything the run leaves is below `run_dir`. Raises LaunchError."""
    trees = tree_ids(config.pin_set)
    for file in ("config.json", "train.parquet"):
        if not Path(config.model, file).is_file():
            raise LaunchError(f"{config.model} has no {file}: make the model first (llm_rl/qwen3/run_*.sh does)")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        for old in (
            run_dir / "run.json",
            run_dir / "steps.jsonl",
            *run_dir.glob("engine-*.jsonl"),
            *run_dir.glob("answers-*.jsonl"),
        ):
            old.unlink(missing_ok=True)
    except OSError as e:
        raise LaunchError(f"{run_dir} cannot be used as the run's folder: {e.strerror}") from None
    record: dict[str, Any] = {
        "name": config.name,
        "pin_set": config.pin_set,
        "tree_ids": trees,
        "seed": config.seed,
        "sam": config.sam,
        "k": config.sam_options.k,
        "threshold": config.sam_options.threshold,
        "steps": config.steps,
        "config": OmegaConf.to_container(config, resolve=True),
        "host": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
    }
    log = run_dir / "verl.log"
    env = environment(config, run_dir)
    argv = command(config, run_dir)
    with log.open("w") as out:
        out.write(f"pin set {config.pin_set}\n")
        out.writelines(f"tree {module} {tree}\n" for module, tree in trees.items())
        out.write(OmegaConf.to_yaml(config, resolve=True))
        out.write(f"host {json.dumps(record['host'])}\n{shlex.join(argv)}\n")
        out.flush()
        print(f"{config.name}: sam {config.sam}, seed {config.seed}, {config.steps} steps; log {log}", flush=True)
        process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            follow(process, run_dir / "steps.jsonl", config.steps)
        finally:
            stop(process)
    problem = failure(config, read_steps(run_dir / "steps.jsonl"), process.returncode, log)
    record["status"] = problem or "ok"
    write_json(run_dir / "run.json", record)
    if problem:
        raise LaunchError(problem)


def environment(config: DictConfig, run_dir: Path) -> dict[str, str]:
    env = dict(os.environ)
    env.update({name: str(value) for name, value in OmegaConf.to_container(config.env, resolve=True).items()})
    env["VERL_FILE_LOGGER_PATH"] = str(run_dir / "steps.jsonl")
    env["SAM_STEP_LOG"] = str(run_dir)
    env["SAM_TAIL_THRESHOLD"] = str(config.sam_options.threshold)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    return env


def tree_ids(pin_set: str) -> dict[str, str]:
    """Tree ids of the patched modules; LaunchError unless this environment has exactly the pin set's patches."""
    pins = ROOT / "patches" / pin_set / "pins.toml"
    if not pins.is_file():
        raise LaunchError(f"there is no pin set {pin_set}: {pins} is missing")
    for module, state in patch_states(pin_set).items():
        if state != "patched":
            again = f"patches/apply.sh {pin_set} --env {sys.prefix}"
            raise LaunchError(f"{module} in {sys.prefix} is {state}, not patched: run {again}")
    with pins.open("rb") as f:
        return {name: module["recorded"]["patched_tree"] for name, module in tomllib.load(f)["module"].items()}


def patch_states(pin_set: str) -> dict[str, str]:
    """What `patchset status --json` finds in this environment: patched, original, modified, ... for each module."""
    status = subprocess.run(
        [sys.executable, ROOT / "patches" / "patchset", "status", pin_set, "--env", sys.prefix, "--json"],
        capture_output=True,
        text=True,
    )
    if not status.stdout:
        raise LaunchError(f"patchset status failed: {status.stderr.strip()}")
    return json.loads(status.stdout)[pin_set]


def follow(process: subprocess.Popen, steps_file: Path, total: int) -> None:
    """Print a line for each training step as the trainer logs it, until the process ends."""
    seen = size = 0
    start = time.monotonic()
    print("  starting Ray, the engine and the trainer", flush=True)
    while True:
        ended = process.poll() is not None
        before, size = size, steps_file.stat().st_size if steps_file.is_file() else 0
        steps = read_steps(steps_file) if size != before else []
        for step in steps[seen:]:
            data = collections.defaultdict(lambda: float("nan"), step["data"])
            print(
                f"  step {step['step']}/{total}  {time.monotonic() - start:5.0f} s  rollout {data['timing_s/gen']:.1f} s"
                f"  step {data['timing_s/step']:.1f} s  {data['rollout/spec/tokens_per_step']:.2f} tokens a step"
                f"  reward {data['critic/rewards/mean']:+.2f}  length {data['response_length/mean']:.0f}",
                flush=True,
            )
        seen = max(seen, len(steps))
        if ended:
            return
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


def failure(config: DictConfig, steps: list[dict], code: int, log: Path) -> str | None:
    """Why a run must not count as a success, in one sentence, or None."""
    if code or len(steps) < config.steps:
        return f"verl ended with status {code} after {len(steps)} of {config.steps} steps: {cause(log)}; see {log}"
    drafted = sum(step["data"].get("rollout/spec/drafted", 0) for step in steps)
    if config.sam != "off" and drafted == 0:
        return (
            f"speculation was asked for (sam={config.sam}) but no draft was verified in {len(steps)} steps: "
            f"the engine ran without it, or never had at most {config.sam_options.threshold} requests running; see {log}"
        )
    if config.sam == "off" and drafted:
        return f"sam=off, but {drafted:.0f} draft tokens were verified: the engine's configuration does not match; see {log}"
    return None


def cause(log: Path) -> str:
    """The last exception's message in a log of Ray actors, whose lines carry colours and the actor's name."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    errors = re.findall(r"^(?:\(.*?pid=.*?\) )?((?:\w+\.)*\w*(?:Error|Exception)\b:? .*)", plain, re.MULTILINE)
    named = [e for e in errors if not e.startswith("ray.exceptions.")]
    return (named or errors or ["no exception was logged"])[-1].strip()


def read_steps(path: Path) -> list[dict]:
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def write_json(path: Path, data: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
