# SPDX-License-Identifier: Apache-2.0
"""What a step loses without asynchronous scheduling, which any drafter on the host switches off, also while it drafts nothing.

    PYTHONPATH=tests/common .venvs/vllm-0.23/bin/python tests/ascend/bench_async.py

vLLM's own CPU platform has no asynchronous scheduling. So three engines of vllm-ascend over the stand-in for torch_npu
take turns at the same requests: without speculation, scheduled asynchronously and not, and with method `sam` while its
switch is off. The worker is a process of its own, which computes while the engine schedules. Greedy, float32, answers
of one length, so that every arm takes as many steps. Times are those of a step, everything included.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import tiny_qwen3
from ascend_engine import Engine
from sam_core.files import write_json

ARMS = {
    "asynchronous": {"async_scheduling": True},
    "synchronous": {"async_scheduling": False},
    "sam, off": {"sam": {"threshold": 1}},
}
PROMPT = 16  # tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="requests at a time")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer (default 128)")
    parser.add_argument("--rounds", type=int, default=9, help="timed turns of each arm (default 9)")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench-async"), help="folder of the JSON file")
    args = parser.parse_args()

    print(f"ms a step, median of {args.rounds} turns (quartiles); load average {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=128)
        engines = {
            name: Engine(folder, distributed_executor_backend="mp", **settings) for name, settings in ARMS.items()
        }
        for name, engine in engines.items():
            if engine.ask("asynchronous") != [name == "asynchronous"]:
                sys.exit(f"bench_async: the engine {name!r} does not schedule as it was asked to")
    measured: dict[int, dict[str, list[float]]] = {}
    for batch in args.batch:
        arms = [name for name in ARMS if batch > 1 or name != "sam, off"]  # one request alone turns the switch on
        times = measured[batch] = {name: [] for name in arms}
        drafted = 0
        for turn in range(args.rounds + 1):  # the first warms up
            rng = random.Random(turn)
            prompts = [[rng.randrange(tiny_qwen3.VOCAB - 1) for _ in range(PROMPT)] for _ in range(batch)]
            for name in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
                start = time.perf_counter()
                engines[name].run(prompts, args.tokens)
                times[name].append(1e3 * (time.perf_counter() - start) / args.tokens)
                drafted += engines[name].count("drafted")
        if drafted > 0.01 * args.tokens * batch * args.rounds:
            sys.exit(f"bench_async: {drafted} draft tokens were verified: the switch was not off")
        for name in arms:
            del times[name][0]
            low, middle, high = statistics.quantiles(times[name], n=4)
            print(
                f"batch {batch:2}  {name:12} {middle:6.2f} ({low:.2f} to {high:.2f}), shortest {min(times[name]):.2f}",
                flush=True,
            )
    print(f"load average at the end {os.getloadavg()[0]:.1f}")
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "bench-async.json", {"tokens": args.tokens, "ms_a_step": measured})
    for engine in engines.values():
        engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
