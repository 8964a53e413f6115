# SPDX-License-Identifier: Apache-2.0
"""A training run that needs neither torch nor vLLM: rollout on every host of a Ray cluster, REINFORCE on the driver.

The policy is a table of logits for the next of 24 tokens given the last one. A worker on each host samples answers, with
sam_core drafting and each draft verified against the sample; the reward is the share of tokens that follow their
predecessor. Steps go to steps.jsonl and, every few, to a checkpoint, with verl's tracker file; a second start goes on from
it. Settings: steps, pause (s a step, until it is resumed), every (steps between checkpoints, 0: none), pad (MB in a
checkpoint).
"""

import argparse
import json
import math
import os
import random
import socket
import sys
import time
from pathlib import Path

import numpy as np
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import sam_core

TOKENS = 24
ANSWERS = 16
LENGTH = 64
DRAFT = 4
RATE = 10.0


@ray.remote(num_cpus=0)
class Rollout:
    """Samples answers on one host; keeps its pool of earlier answers from step to step."""

    def __init__(self):
        self.pool = sam_core.Pool(memory_bytes=1 << 24, rule="newest")

    def sample(self, logits, seed):
        """(host name, [(tokens, reward)], draft tokens verified, accepted)."""
        draw = random.Random(seed)
        cumulative = np.cumsum(np.exp(logits - logits.max(1, keepdims=True)), axis=1)
        answers, drafted, accepted = [], 0, 0
        out, lengths = np.empty((1, DRAFT), np.int32), np.empty(1, np.int32)
        for _ in range(ANSWERS):
            prompt = np.array([draw.randrange(TOKENS)], np.int32)
            slot = self.pool.open(prompt, group=b"bed")
            tokens, fresh = prompt.tolist(), np.empty(0, np.int32)
            while len(tokens) <= LENGTH:
                counts = np.array([len(fresh)], np.int32)
                self.pool.step(np.array([slot], np.int32), fresh, counts, DRAFT, out, lengths)
                draft, new = out[0, : lengths[0]].tolist(), []
                for guess in [*draft, None]:
                    row = cumulative[tokens[-1]]
                    new.append(int(np.searchsorted(row, draw.random() * row[-1])))
                    tokens.append(new[-1])
                    if new[-1] != guess:
                        break
                drafted += len(draft)
                accepted += len(new) - 1
                fresh = np.array(new, np.int32)
            self.pool.close(slot, keep=True)
            steps = list(zip(tokens, tokens[1:]))
            answers.append((tokens, sum((a + 1) % TOKENS == b for a, b in steps) / len(steps)))
        return socket.gethostname(), answers, drafted, accepted


def update(logits, answers):
    """One step of REINFORCE, each token rewarded by itself, the batch's mean as baseline; returns that mean."""
    mean = sum(reward for _, reward in answers) / len(answers)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gradient, seen = np.zeros_like(logits), np.zeros(TOKENS)
    for tokens, _ in answers:
        for a, b in zip(tokens, tokens[1:]):
            advantage = ((a + 1) % TOKENS == b) - mean
            gradient[a] -= advantage * chances[a]
            gradient[a, b] += advantage
            seen[a] += 1
    logits += RATE * gradient / np.maximum(seen, 1)[:, None]
    return mean


def save(path, data):
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data))
    os.replace(new, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    settings = {"steps": 8.0, "pause": 0.0, "every": 1.0, "pad": 0.0}
    settings |= {k: float(v) for k, v in (word.split("=") for word in options.settings)}
    folder, log = options.run_dir, options.run_dir / "steps.jsonl"
    if options.check:
        sys.exit("error: the run needs more steps" if settings["steps"] < 1 else 0)
    tracker = folder / "checkpoints/latest_checkpointed_iteration.txt"
    tracker.parent.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(f"checkpoints: {{every: {settings['every']:.0f}}}\n")
    state = {"step": 0, "logits": [[0.0] * TOKENS] * TOKENS, "lines": []}
    if (folder / "checkpoint.json").exists():
        state = json.loads((folder / "checkpoint.json").read_text())
        settings["pause"] = 0.0
        print(f"resumed after step {state['step']}", flush=True)
    ray.init(address=os.environ["RAY_ADDRESS"])
    hosts = math.floor(ray.cluster_resources()["NPU"] / 16)
    group = placement_group([{"NPU": 16}] * hosts, strategy="STRICT_SPREAD")
    ray.get(group.ready(), timeout=60)
    workers = [
        Rollout.options(
            resources={"NPU": 16},
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        ).remote()
        for number in range(hosts)
    ]
    logits = np.array(state["logits"])
    for step in range(state["step"] + 1, int(settings["steps"]) + 1):
        parts = ray.get(
            [worker.sample.remote(logits, step * 100 + at) for at, worker in enumerate(workers)], timeout=60
        )
        reward = update(logits, [answer for _, answers, _, _ in parts for answer in answers])
        line = {"step": step, "reward": round(reward, 4), "hosts": sorted(part[0] for part in parts)}
        line |= {"drafted": sum(part[2] for part in parts), "accepted": sum(part[3] for part in parts)}
        state = {"step": step, "logits": logits.tolist(), "lines": [*state["lines"], line]}
        if settings["every"] and step % settings["every"] == 0:
            save(folder / "checkpoint.json", state | {"pad": " " * int(settings["pad"] * 1e6)})
            tracker.write_text(str(step))
        log.write_text("".join(json.dumps(line) + "\n" for line in state["lines"]))
        print(json.dumps(line), flush=True)
        time.sleep(settings["pause"])
    lines = state["lines"]
    summary = {"steps": len(lines), "reward_first": lines[0]["reward"], "reward_last": lines[-1]["reward"]}
    summary |= {key: sum(line[key] for line in lines) for key in ("drafted", "accepted")}
    save(folder / "summary.json", summary)
    print(json.dumps(summary), flush=True)
    if not summary["accepted"]:
        raise SystemExit("no draft token was accepted: speculation did nothing")


if __name__ == "__main__":
    main()
