# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab bench-host`: host time of an engine's steps, without speculation, with the switch off and
verifying; also verifying drafts that cost nothing, which is what any drafter's steps take."""

import argparse
import contextlib
import functools
import itertools
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tiny_qwen3
from ascend_engine import COLUMNS, OLD, VERSION, Engine
from sam_core.files import write_json

from sam_lab.cli import positive

EPILOG = """\
The model is so small that a step is all host: scheduler, runner, launches, sampler, proposer, and the messages between
processes; larger matrices would count the work of a device, which grows with the rows. Engines take turns at the same
requests, and those whose turn it is not are stopped (SIGSTOP), so that none polls. They run as one process; with the
worker in a process of its own; and as verl's server runs them, an AsyncLLM that holds each request as a task, the
worker in a process of its own. On the platform npu operators run in the stand-in for torch_npu. The seconds inside its
own attention and cache operators, which no host would spend, are taken off, and those by which its device, a mode in
Python, delays every torch call: some microseconds, as long as the call itself.

A turn's figure is the lower quartile of its steps in which all requests decode, as what else the machine does makes
steps only longer. One start of a process can be a tenth slower than the next for as long as it lives, so all engines
start several times. Printed are the median over all turns, and the mean over starts of the median ratio to the arm
it is compared with, in the same turn, with a bootstrap interval of 95 % over starts and their turns.
"""

K = 3
NUM_TOKENS = 48  # of each answer
PROMPT = 16  # tokens
MODEL = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "one process": {"in_process": True},
    "worker apart": {"distributed_executor_backend": "mp"},
    "server": {"distributed_executor_backend": "mp", "front_end": "AsyncLLM"},
}
ARMS: dict[str, tuple] = {  # when it drafts, whether it is seeded, and the arm that it is compared with
    "plain": (None, False, None),
    "off": ("never", False, "plain"),
    "free drafts": ("free", False, "plain"),
    "rejection": ("always", False, "plain"),
    "plain, seeded": (None, True, None),
    "seeded": ("always", True, "plain, seeded"),
}
GOALS: dict[tuple[str, int | None], float] = {
    ("off", None): 1.02,
    ("rejection", 1): 1.25,
    ("seeded", 1): 1.25,
    ("rejection", 32): 1.15,
    ("seeded", 32): 1.15,
}


def start(folder: str, platform: str, placement: str, arm: str) -> Engine:
    drafts, seeded, _ = ARMS[arm]
    settings: dict[str, Any] = {"max_num_batched_tokens": 4096, **PLACEMENTS[placement]}
    sam = None
    if drafts:
        sam = {"min_prob": 0, "threshold": 64} | ({"verify": "seeded"} if seeded else {})
    elif seeded:
        settings["additional_config"] = {"sam_verify": "seeded"}
    if not OLD:
        settings["async_scheduling"] = False  # so that no arm hides host time behind another step
    engine = Engine(folder, platform, sam=sam, k=K, **settings)
    if drafts == "never":
        engine.ask("keep_off")
    if drafts == "free":
        engine.ask("free_drafts")
    engine.ask("time_operators")
    return engine


def processes(engine: Engine) -> list[psutil.Process]:
    process = psutil.Process(engine.process.pid)
    return [process, *process.children(recursive=True)]


@contextlib.contextmanager
def running(engine: Engine):
    """The engine's processes run here alone."""
    for process in processes(engine):
        process.resume()
    try:
        yield
    finally:
        for process in processes(engine):
            process.suspend()


@contextlib.contextmanager
def taking_turns(starts: dict[str, Callable[[], Engine]]):
    """Engines by name, started one after another; none of them runs but within `running`."""
    with contextlib.ExitStack() as stack:
        engines = {}
        for name, start_one in starts.items():
            engines[name] = engine = start_one()
            stack.callback(engine.stop)
            with running(engine):
                pass
        yield engines
        for engine in engines.values():
            for process in processes(engine):
                process.resume()


@contextlib.contextmanager
def engines_of(platform: str, placement: str):
    """An engine of each arm, none of them running."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_qwen3.save(folder, **MODEL)
        with taking_turns({arm: functools.partial(start, folder, platform, placement, arm) for arm in ARMS}) as engines:
            yield engines


def num_drafted(arm: str, batch: int) -> int:
    """Draft tokens of a step in which all requests decode."""
    return K * batch if ARMS[arm][0] in ("always", "free") else 0


def decode(engine: Engine, arm: str, batch: int, turn: int) -> None:
    rng = random.Random(turn)
    prompts = [[rng.randrange(tiny_qwen3.VOCAB - 1) for _ in range(PROMPT)] for _ in range(batch)]
    engine.run(prompts, NUM_TOKENS, **SAMPLED, **({"seed": turn} if ARMS[arm][1] else {}))


def step_ms(engine: Engine, arm: str, batch: int, turn: int) -> float:
    """Lower quartile of the host time of steps in which `batch` requests decode."""
    with running(engine):
        decode(engine, arm, batch, turn)
        noted = engine.ask("operator_seconds")[0]
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in engine.rows]
    drafted = num_drafted(arm, batch)
    inside = [seconds for *shape, seconds in noted if shape == [batch, drafted]]
    # the first decoding step drafts nothing yet; a step's outputs may come in two rows where answers end
    steps = [row["seconds"] for row in rows if row["running"] == batch and row["drafted"] == drafted][2:]
    if len(steps) < 5:
        sys.exit(f"bench-host: {len(steps)} steps of {batch} requests had {drafted} draft tokens in the arm {arm!r}")
    return 1e3 * (statistics.quantiles(steps, n=4)[0] - statistics.quantiles(inside, n=4)[0])


def ratio(ratios: np.ndarray) -> tuple[float, float, float]:
    """Mean over starts of the median over turns, and its bootstrap interval; ratios: [starts, turns]."""
    rng = np.random.default_rng(0)
    num_starts, num_turns = ratios.shape
    starts = rng.integers(num_starts, size=(2000, num_starts, 1))
    turns = rng.integers(num_turns, size=(2000, num_starts, num_turns))
    low, high = np.percentile(np.median(ratios[starts, turns], axis=2).mean(1), [2.5, 97.5])
    return float(np.median(ratios, axis=1).mean()), float(low), float(high)


def measure(engines: dict[str, Engine], batch: int, turns: int) -> dict[str, list[float]]:
    """Milliseconds of a step by arm, one figure a turn."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    arms = list(ARMS)
    for turn in range(turns + 1):  # the first warms up
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            times[arm].append(step_ms(engines[arm], arm, batch, turn))
    return {arm: values[1:] for arm, values in times.items()}


def line(starts: list[dict[str, list[float]]], arm: str, batch: int) -> str:
    """A row of the table."""
    times = {name: np.array([start[name] for start in starts]) for name in ARMS}
    baseline, cells = ARMS[arm][2], [str(batch), arm, f"{np.median(times[arm]):.2f}", "", ""]
    if baseline:
        mean, low, high = ratio(times[arm] / times[baseline])
        cells[3] = f"{mean:.3f} ({low:.3f} to {high:.3f})"
        cells[4] = str(GOALS.get((arm, None)) or GOALS.get((arm, batch)) or "")
    return f"| {' | '.join(cells)} |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    platforms = ["npu"] if OLD else ["npu", "cpu"]
    parser.add_argument("--platform", nargs="+", choices=platforms, default=platforms)
    parser.add_argument("--placement", nargs="+", choices=PLACEMENTS, default=list(PLACEMENTS))
    parser.add_argument("--batch", type=positive, nargs="+", default=[1, 8, 32, 64], help="requests at a time")
    parser.add_argument("--starts", type=positive, default=6, help="starts of all engines (default 6)")
    parser.add_argument("--turns", type=positive, default=5, help="timed turns of each arm a start (default 5)")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench-host"), help="folder of the JSON file")


def run(args: argparse.Namespace) -> int:
    record: dict = {}
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    for platform, placement in itertools.product(args.platform, args.placement):
        print(f"\nvLLM {VERSION}, {platform}, {placement}\n", flush=True)
        print("| requests | arm | ms a step | against plain | goal |\n|---:|---|---:|---|---|", flush=True)
        starts: dict[int, list] = {batch: [] for batch in args.batch}
        for number in range(args.starts):
            with engines_of(platform, placement) as engines:
                for batch in args.batch:
                    starts[batch].append(measure(engines, batch, args.turns))
            print(f"start {number + 1} of {args.starts} done", file=sys.stderr, flush=True)
        for batch in args.batch:
            print(*(line(starts[batch], arm, batch) for arm in ARMS), sep="\n", flush=True)
        record.setdefault(platform, {})[placement] = starts
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / f"vllm-{VERSION}.json", {"tokens": NUM_TOKENS, "ms_a_step": record})
    return 0
