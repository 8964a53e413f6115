# SPDX-License-Identifier: Apache-2.0
"""The demo: train the tiny CPU recipe without and with SAM from the same seed, and report the gain.

The two runs alternate (llm_rl.turns): one trains a step while the other waits. Other work on the machine then slows
both alike.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from llm_rl import config, forks, launch
from llm_rl.errors import UserError
from llm_rl.qwen3 import tiny_model
from llm_rl.reports.__main__ import main as report

RECIPE = launch.ROOT / "llm_rl" / "qwen3" / "dapo_qwen3_tiny_cpu.yaml"
ARMS = {"off": "off", "on": "batch"}
SETTINGS = ["steps=8", "env.VERL_USE_EXTERNAL_MODULES=llm_rl.cpu_platform,llm_rl.turns"]
MODULES = [
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "transformers.models.qwen3.modeling_qwen3",
]
"""Modules that the processes of a run need; a server imports them once for all (llm_rl.forks)."""
DISK, MEMORY = 1e9, 8e9
"""Bytes that both arms and Ray need on disk, and in memory."""


def check(out: Path, overrides: list[str]) -> dict[str, str]:
    """The environment variables of a run. Raises UserError for a fault of model, settings, disk or memory that would
    end the demo later.
    """
    if problem := tiny_model.check():
        raise UserError(problem)
    plans = [launch.plan(config.load(RECIPE, [*overrides, f"sam={sam}"]), out / arm) for arm, sam in ARMS.items()]
    free = shutil.disk_usage(out).free
    if free < DISK:
        raise UserError(
            f"{out} has {free / 1e9:.1f} GB of disk left and the demo needs {DISK / 1e9:.0f} GB: free some, "
            "or name another folder with --out"
        )
    memory = psutil.virtual_memory().available
    if memory < MEMORY:
        raise UserError(
            f"{memory / 1e9:.1f} GB of memory are available and the demo needs {MEMORY / 1e9:.0f} GB: "
            "end other programs"
        )
    return plans[0].variables


def command(arm: str, out: Path, overrides: list[str]) -> list[str]:
    settings = [*overrides, f"sam={ARMS[arm]}", "--run-dir", str(out / arm)]
    return [sys.executable, "-m", "llm_rl.launch", str(RECIPE), *settings]


def train(out: Path, overrides: list[str], variables: dict[str, str]) -> int:
    """Run both arms alternately; return the exit status of the first that failed, else 0.

    The second arm starts when the first waits for its first turn or has ended: two engines that start together would
    share the path of verl's weight socket. A failure during a start ends both arms; later, the other arm continues.
    """
    started: dict[str, subprocess.Popen] = {}
    trainers: dict[str, socket.SocketIO] = {}
    with (
        tempfile.TemporaryDirectory(prefix="sam-demo-") as folder,
        forks.server(Path(folder), MODULES, os.environ | variables),
        socket.socket(socket.AF_UNIX) as server,
        ThreadPoolExecutor() as pool,
    ):
        server.bind(f"{folder}/turns")
        server.listen()
        server.settimeout(0.5)
        try:
            for arm in ARMS:
                started[arm] = subprocess.Popen(
                    command(arm, out, overrides),
                    env=os.environ | {"SAM_TURNS": f"{folder}/turns"} | forks.variables(Path(folder)),
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C comes to this process alone, which ends the launchers
                )
                pool.submit(show, arm, started[arm])
                if trainer := accept(server, started[arm]):
                    trainers[arm] = trainer
                elif code := started[arm].wait():
                    return code
            take_turns(trainers)
            return next(filter(None, [process.wait() for process in started.values()]), 0)
        finally:
            end(list(started.values()))


def show(arm: str, launcher: subprocess.Popen) -> None:
    for line in launcher.stdout or ():
        print(f"{arm:<3} {line.decode(errors='replace')}", end="", flush=True)


def accept(server: socket.socket, launcher: subprocess.Popen) -> socket.SocketIO | None:
    """Wait until a launcher's trainer connects for its first turn; None if the launcher ends before."""
    while True:
        try:
            return server.accept()[0].makefile("rwb", buffering=0)
        except TimeoutError:
            if launcher.poll() is not None:
                return None


def take_turns(trainers: dict[str, socket.SocketIO]) -> None:
    """Let one trainer at a time train a step, until all have ended.

    The trainer that is behind comes first, as after a resume. At equal steps the trainer that had the previous turn
    comes first, so that neither always begins a pair.
    """
    waiting, last = {arm: int(trainer.readline() or 0) for arm, trainer in trainers.items()}, ""
    while waiting := {arm: step for arm, step in waiting.items() if step}:
        last = min(waiting, key=lambda arm: (waiting[arm], arm != last))
        try:
            trainers[last].write(b"\n")
            waiting[last] = int(trainers[last].readline() or 0)
        except OSError:
            waiting[last] = 0


def end(launchers: list[subprocess.Popen]) -> None:
    """End the launchers, which end their trainers."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
    try:
        for launcher in launchers:
            launcher.terminate()
        for launcher in launchers:
            launcher.wait()
    finally:
        signal.signal(signal.SIGINT, interrupt)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m llm_rl.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=launch.ROOT / "runs" / "demo", help="folder for runs and report")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe, for both arms")
    args = parser.parse_args(argv)
    out, overrides = args.out.resolve(), [*SETTINGS, *args.overrides]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with launch.lock_folder(out):
            variables = check(out, overrides)
            if code := train(out, overrides, variables):
                return code
            print("== comparison", flush=True)
            return report(["report", *(f"--{arm}={out / arm}" for arm in ARMS), f"--out={out}"])
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the runs and their processes are ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
