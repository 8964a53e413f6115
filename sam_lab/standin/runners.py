# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab bench-runners`: steps of vLLM's runners, asynchronous and not, with and without `sam`."""

import argparse
import functools
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tiny_qwen3
from ascend_engine import Engine
from sam_core.files import write_json
from transformers import AutoConfig

from sam_lab.cli import LabError, positive
from sam_lab.standin.host import ratio, running, taking_turns

EPILOG = """\
A drafter on the host keeps the engine on runner 1. So engines take turns at the same requests: without speculation on
runner 2 and on runner 1, and with `sam`, its switch off and on, those on runner 1 scheduled asynchronously and not.
Answers are greedy and of one length. The worker is a process of its own, which computes while the engine schedules;
engines whose turn it is not are stopped. Printed are the median over all turns with quartiles, and as in bench-host the
mean over starts of the median ratio to the asynchronous engine without speculation in the same turn.

On the platform npu vllm-ascend runs over the stand-in for torch_npu, eagerly, with a tiny model in float32; it has no
runner 2 there. On the platform gpu vLLM runs a model from a folder, once for each mode of graphs.
"""

K = 3
PROMPT = 16  # tokens
PLAIN = "asynchronous"
SAM = {"threshold": 1 << 20, "min_prob": 0}
ARMS = {  # whether on runner 2; scheduled asynchronously; options of sam
    "runner 2, asynchronous": (True, True, None),
    "asynchronous": (False, True, None),
    "synchronous": (False, False, None),
    "sam, off": (False, True, SAM),  # until keep_off
    "sam, on": (False, True, SAM),
    "sam, off, synchronous": (False, False, SAM),
    "sam, on, synchronous": (False, False, SAM),
}


def arms_of(platform: str, chosen: list[str] | None) -> list[str]:
    possible = [arm for arm, (runner_2, _, _) in ARMS.items() if platform == "gpu" or not runner_2]
    return [arm for arm in possible if arm in chosen] if chosen else possible


def start(arm: str, platform: str, model: str, graphs: str) -> Engine:
    """An engine; exits where it does not run as it was asked to."""
    runner_2, asynchronous, sam = ARMS[arm]
    settings = {"distributed_executor_backend": "mp", "async_scheduling": asynchronous, "max_num_seqs": 128}
    if platform == "gpu":
        settings |= {"dtype": "auto", "compilation_config": {"cudagraph_mode": graphs}}
        settings |= {"num_gpu_blocks_override": None, "gpu_memory_utilization": 0.9 / len(ARMS)}
    environment = {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner_2))}
    engine = Engine(model, platform, sam=sam, k=K, environment=environment, **settings)
    if engine.ask("scheduling") != [[runner_2, asynchronous]]:
        sys.exit(f"bench-runners: the engine {arm!r} does not run as it was asked to")
    if "off" in arm:
        engine.ask("keep_off")
    return engine


def measure(
    engines: dict[str, Engine], vocab_size: int, batch: int, tokens: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds of a step, and tokens that a request gets in it, by arm and turn."""
    arms = list(engines)
    found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in arms}
    for turn in range(rounds + 1):  # the first warms up
        rng = random.Random(turn)
        prompts = [[rng.randrange(vocab_size - 1) for _ in range(PROMPT)] for _ in range(batch)]
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            with running(engines[arm]):
                began = time.perf_counter()
                engines[arm].run(prompts, tokens)
                seconds = time.perf_counter() - began
            steps = len(engines[arm].rows)
            gained = batch * tokens / engines[arm].count("running")
            drafted = engines[arm].count("drafted")
            if bool(drafted) != ("on" in arm.split(", ")):
                sys.exit(f"bench-runners: {drafted} draft tokens were verified in the arm {arm!r}")
            found[arm].append((1e3 * seconds / steps, gained))
    return {arm: figures[1:] for arm, figures in found.items()}


def line(starts: list[dict[str, list[tuple[float, float]]]], arm: str, batch: int) -> str:
    """A row of the table."""
    turns = np.array([start[arm] for start in starts])  # [starts, turns, 2]
    low, middle, high = np.quantile(turns[:, :, 0], [0.25, 0.5, 0.75])
    cells = [str(batch), arm, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{np.median(turns[:, :, 1]):.2f}", ""]
    if arm != PLAIN and PLAIN in starts[0]:
        mean, low, high = ratio(turns[:, :, 0] / np.array([start[PLAIN] for start in starts])[:, :, 0])
        cells[-1] = f"{mean:.3f} ({low:.3f} to {high:.3f})"
    return f"| {' | '.join(cells)} |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__.partition(": ")[2]
    parser.add_argument("--platform", choices=["npu", "gpu"], default="npu", help="npu: the stand-in (default)")
    parser.add_argument("--model", help="folder of a model, for the platform gpu")
    modes = ["FULL_AND_PIECEWISE", "FULL", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"]
    parser.add_argument(
        "--graphs", nargs="+", choices=modes, default=modes[:2], help="modes of graphs, for the platform gpu"
    )
    parser.add_argument(
        "--arms", nargs="+", choices=[*ARMS], metavar="ARM", help=f"default: all of {', '.join(ARMS)!r}"
    )
    parser.add_argument("--batch", type=positive, nargs="+", default=[1, 8, 32, 128], help="requests at a time")
    parser.add_argument("--tokens", type=positive, default=128, help="tokens of each answer (default 128)")
    parser.add_argument("--starts", type=positive, default=1, help="starts of all engines (default 1)")
    parser.add_argument("--rounds", type=positive, default=9, help="timed turns of each arm a start (default 9)")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench-runners"), help="folder of the JSON file")


def run(args: argparse.Namespace) -> int:
    if (args.platform == "gpu") != bool(args.model):
        raise LabError("--platform gpu needs --model, a folder with a model; npu makes its own")

    record: dict = {}
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if not args.model:
            tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=128)
        model = args.model or folder
        vocab_size = AutoConfig.from_pretrained(model).vocab_size
        for graphs in args.graphs if args.model else ["eager"]:
            starts: dict[int, list] = {batch: [] for batch in args.batch}
            for number in range(args.starts):
                arms = arms_of(args.platform, args.arms)
                with taking_turns(
                    {arm: functools.partial(start, arm, args.platform, model, graphs) for arm in arms}
                ) as engines:
                    for batch in args.batch:
                        starts[batch].append(measure(engines, vocab_size, batch, args.tokens, args.rounds))
                print(f"start {number + 1} of {args.starts} done", file=sys.stderr, flush=True)
            print(
                f"\n{graphs}\n\n| requests | arm | ms a step | quartiles | tokens a request and step | against plain |"
            )
            print("|---:|---|---:|---:|---:|---|", flush=True)
            for batch in args.batch:
                print(*(line(starts[batch], arm, batch) for arm in starts[batch][0]), sep="\n", flush=True)
            record[graphs] = starts
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / f"{args.platform}.json", {"tokens": args.tokens, "ms_and_tokens_a_step": record})
    return 0
