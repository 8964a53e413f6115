# SPDX-License-Identifier: Apache-2.0
"""A job without torch and vLLM: rollout on every host of a Ray cluster by a policy that becomes sharper in each step.

The policy is a table of logits for the next of 24 tokens given the last one. A worker on each host samples answers,
with sam_core drafting and each draft verified against the sample; the reward is the share of tokens that follow their
predecessor. Steps go to steps.jsonl and, every few, to a checkpoint, with verl's tracker file, before their line; a
second start goes on from it if the line is there, as llm_rl does. Settings: steps; pause (s a step, until it is
resumed); every (steps between checkpoints, 0: none); pad (MB in a checkpoint); text (printed); fits (0: it does not);
sam (off: without drafts). They are keys of a recipe: steps, sam, checkpoints.every, env.*.
It is watched as a run of verl is: each worker serves metrics under the names of vLLM's servers, with the values of its
own sampling, and the driver names the workers in prometheus.yml and publishes its steps by llm_rl.prometheus.
"""

import argparse
import itertools
import json
import math
import os
import random
import socket
import sys
import time
from pathlib import Path

import numpy as np
import prometheus_client
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import sam_core
from llm_rl.prometheus import published, verl_file

TOKENS = 24
ANSWERS = 16
LENGTH = 64
DRAFT = 4


@ray.remote(num_cpus=0)
class Rollout:
    """Samples answers on one host, with drafts or without; keeps its pool of earlier answers from step to step."""

    def __init__(self, drafts):
        self.drafts = drafts
        self.pool = sam_core.Pool(memory_bytes=1 << 24, rule="newest")
        labels = {"model_name": "table", "engine": "0"}

        def metric(kind, name):
            return kind(f"vllm:{name}", name, list(labels)).labels(**labels)

        gauge, counter = prometheus_client.Gauge, prometheus_client.Counter
        self.running, self.waiting = metric(gauge, "num_requests_running"), metric(gauge, "num_requests_waiting")
        self.switch, self.tokens = metric(gauge, "sam_switch_on"), metric(counter, "generation_tokens")
        self.drafted = metric(counter, "spec_decode_num_draft_tokens")
        self.accepted = metric(counter, "spec_decode_num_accepted_tokens")
        self.switch.set(int(drafts))
        self.server, _ = prometheus_client.start_http_server(0, ray.util.get_node_ip_address())

    def address(self):
        return f"{ray.util.get_node_ip_address()}:{self.server.server_port}"

    def sample(self, logits, seed):
        """Sample answers; return (host name, rewards, number of verified draft tokens, number of accepted ones)."""
        draw = random.Random(seed)
        cumulative = np.cumsum(np.exp(logits - logits.max(1, keepdims=True)), axis=1)
        rewards, drafted, accepted = [], 0, 0
        self.running.set(1)
        out, lengths = np.empty((1, DRAFT), np.int32), np.empty(1, np.int32)
        for _ in range(ANSWERS):
            prompt = np.array([draw.randrange(TOKENS)], np.int32)
            slot = self.pool.open(prompt, group=b"bed")
            tokens, fresh = prompt.tolist(), np.empty(0, np.int32)
            while len(tokens) <= LENGTH:
                counts = np.array([len(fresh)], np.int32)
                self.pool.step(np.array([slot], np.int32), fresh, counts, DRAFT, out, lengths)
                draft, new = out[0, : lengths[0]].tolist() if self.drafts else [], []
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
            steps = list(itertools.pairwise(tokens))
            rewards.append(sum((a + 1) % TOKENS == b for a, b in steps) / len(steps))
            self.tokens.inc(len(steps))
        self.running.set(0)
        self.drafted.inc(drafted)
        self.accepted.inc(accepted)
        return socket.gethostname(), rewards, drafted, accepted


def save(path, data):
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data))
    os.replace(new, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--object-store", type=int)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    settings = {"steps": 8.0, "pause": 0.0, "every": 1.0, "pad": 0.0, "text": "", "fits": 1.0, "sam": ""}
    given = ((key.rpartition(".")[2], value) for key, value in (word.split("=") for word in options.settings))
    settings |= {key: value if key in ("text", "sam") else float(value) for key, value in given}
    folder, log = options.run_dir, options.run_dir / "steps.jsonl"
    if options.check:
        sys.exit(0 if settings["fits"] else "error: it does not fit")
    tracker = folder / "checkpoints/latest_checkpointed_iteration.txt"
    tracker.parent.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(f"checkpoints: {{every: {settings['every']:.0f}}}\n")
    state = {"step": 0, "lines": []}
    logged = len(log.read_text().splitlines()) if log.exists() else 0
    if (folder / "checkpoint.json").exists() and logged >= json.loads((folder / "checkpoint.json").read_text())["step"]:
        state = json.loads((folder / "checkpoint.json").read_text())
        settings["pause"] = 0.0
        print(f"resumed after step {state['step']}", flush=True)
    print(settings["text"], flush=True)
    ray.init(address=os.environ["RAY_ADDRESS"])
    hosts = math.floor(ray.cluster_resources()["NPU"] / 16)
    group = placement_group([{"NPU": 16}] * hosts, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    workers = [
        Rollout.options(
            resources={"NPU": 16},
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        ).remote(settings["sam"] != "off")
        for number in range(hosts)
    ]
    successor = np.roll(np.eye(TOKENS), 1, axis=1)
    with published(folder) as publish:
        # verl writes the same file (verl/workers/rollout/utils.py, update_prometheus_config).
        targets = ray.get([worker.address.remote() for worker in workers])
        save(verl_file(folder), {"scrape_configs": [{"job_name": "rollout", "static_configs": [{"targets": targets}]}]})
        for step in range(state["step"] + 1, int(settings["steps"]) + 1):
            begin, logits = time.monotonic(), (step - 1) * successor
            asked = [worker.sample.remote(logits, step * 100 + at) for at, worker in enumerate(workers)]
            parts = ray.get(asked)
            rollout_s = time.monotonic() - begin
            rewards = [reward for part in parts for reward in part[1]]
            reward = sum(rewards) / len(rewards)
            line = {"step": step, "reward": round(reward, 4), "hosts": sorted(part[0] for part in parts)}
            line |= {"drafted": sum(part[2] for part in parts), "accepted": sum(part[3] for part in parts)}
            # Each host runs one request at a time, so the whole rollout counts as its tail.
            data = {"timing_s/gen": rollout_s, "timing_s/step": time.monotonic() - begin, "critic/rewards/mean": reward}
            data |= {"response_length/mean": LENGTH, "rollout/spec/busy_s": rollout_s, "rollout/spec/tail_s": rollout_s}
            data |= {f"rollout/spec/{name}": line[name] for name in ("drafted", "accepted")}
            line["data"] = data
            state = {"step": step, "lines": [*state["lines"], line]}
            if settings["every"] and step % settings["every"] == 0:
                save(folder / "checkpoint.json", state | {"pad": " " * int(settings["pad"] * 1e6)})
                tracker.write_text(str(step))
            log.write_text("".join(json.dumps(line) + "\n" for line in state["lines"]))
            print(json.dumps(line), flush=True)
            publish([{"step": step, "data": data}])
            time.sleep(settings["pause"])
    lines = state["lines"]
    summary = {"steps": len(lines), "reward_first": lines[0]["reward"], "reward_last": lines[-1]["reward"]}
    summary |= {key: sum(line[key] for line in lines) for key in ("drafted", "accepted")}
    save(folder / "summary.json", summary)
    print(json.dumps(summary), flush=True)
    if not summary["accepted"] and settings["sam"] != "off":
        raise SystemExit("no draft token was accepted: speculation did nothing")


if __name__ == "__main__":
    main()
