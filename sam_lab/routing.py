# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab routing`: gain of sending the answers to one prompt to one replica, and the long ones first."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sam_core.engines.routing import PromptRoutes
from sam_core.files import write_json
from sam_core.options import SOURCES
from sam_core.seeds import request_seed

from llm_rl.evaluation.engine import Engine, load_tokenizer, prompt_ids
from sam_lab import orders
from sam_lab.cli import LabError, check_outputs, non_negative, positive

Choose = Callable[[str, list[int], Mapping[int, int]], int]
CPU = {
    "OMP_NUM_THREADS": "1",
    "VLLM_PLUGINS": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
RECIPE = Path("llm_rl/qwen3/dapo_qwen3_32b_32die.yaml")
SAM = {"threshold": 1 << 20, "verify": "seeded"}
DRAWS = 24
SIMULATED = ("halves", "recipe", "set", "draws")
UNRECORDED = ("run", "command", "out", "recording", *SIMULATED)
WAYS = ("spread", "sticky", "sticky, no bound")
COLUMNS = (
    ("way", "<20", "way"),
    ("tokens a step", ">14.3f", "tokens_per_step"),
    ("acceptance", ">11.3f", "acceptance"),
    ("from group", ">11.3f", "group"),
    ("from history", ">13.3f", "history"),
    ("rollout s", ">10.1f", "seconds"),
    ("answers", ">10", "answers"),
    ("imbalance", ">10.3f", "imbalance"),
    ("worst", ">7.3f", "worst"),
    ("returned", ">9.3f", "returned"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Rollouts of several replicas, engines of the patched vLLM, by three ways of routing: `spread` sends each request "
        "where fewest are in flight, as verl does; `sticky` keeps the answers to a prompt together and returns a prompt "
        "to its replica, within a bound; `sticky, no bound` always does. Each step asks some of the prompts. Every "
        "request has a seed, so that all ways have the same answers; `answers` is a hash of them. Replicas generate one "
        "after the other: a step takes what the slower one took. imbalance: the most requests of a replica in a step, in "
        "shares of the mean; returned: the share of prompts asked again whose answers all came to the replica that had "
        "them all before. Without --model only these are counted, and no engine starts. With --recording the planner's "
        "engines roll out a recipe with recorded lengths, by what is known of them beforehand."
    )
    add = parser.add_argument
    add("--model", help="folder of the model, with its tokenizer")
    add("--data", type=Path, help="questions in verl's schema, Parquet or JSON Lines")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, help="default all; each starts engines anew")
    add("--replicas", type=positive, default=2, help="default 2")
    add("--prompts", type=positive, default=32, help="different prompts in all (default 32)")
    add("--batch", type=positive, default=12, help="prompts a step (default 12)")
    add("--n", type=positive, default=8, help="answers to each (default 8)")
    add("--steps", type=positive, default=8, help="rollouts (default 8)")
    add("--k", type=positive, default=3, help="drafted tokens a step (default 3)")
    add("--sam", type=json.loads, default={}, help="further options of speculative_config.sam, as JSON")
    add("--max-tokens", type=positive, default=1024, help="longest answer (default 1024)")
    add("--dtype", default="float32", help="default float32")
    add("--recording", type=Path, metavar="FILE", help="simulate orders of sending on the lengths of this recording")
    add("--halves", action="store_true", help="known: half of each group, instead of earlier epochs")
    add("--recipe", type=Path, metavar="YAML", help=f"of the simulation (default {RECIPE})")
    add("--set", nargs="+", metavar="key=value", help="as for the recipe's script")
    add("--draws", type=positive, metavar="N", help=f"batches of the simulation (default {DRAWS})")
    add("--seed", type=non_negative, default=1)
    add("--out", type=Path, help="file for the figures, as JSON")


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError or OSError."""
    check_outputs(args.out)
    if args.recording:
        args.recipe, args.draws = args.recipe or RECIPE, args.draws or DRAWS
        return orders.run(args)
    if alone := [name for name in SIMULATED if getattr(args, name)]:
        raise LabError(f"--{alone[0]} goes with --recording: name one")
    if args.batch > args.prompts:
        raise LabError(f"--batch must be at most --prompts, which is {args.prompts}, got {args.batch}")
    if bool(args.model) != bool(args.data):
        raise LabError("--model and --data go together: give both, or none to count only")
    prompts = read(args) if args.model else [[number] for number in range(args.prompts)]
    print("".join(f"{head:{form.partition('.')[0].rstrip('f')}}" for head, form, _ in COLUMNS), flush=True)
    figures = []
    for way in args.ways:
        figures.append(measure(args, way, prompts))
        cells = [(figures[-1][name], form) for _, form, name in COLUMNS]
        texts = (f"{'-':{form.partition('.')[0]}}" if x is None else f"{x:{form}}" for x, form in cells)
        print("".join(texts), flush=True)
    if args.out:
        settings = {name: value for name, value in vars(args).items() if name not in UNRECORDED}
        write_json(args.out, {"settings": settings | {"data": str(args.data)}, "ways": figures})
    return 0


def read(args: argparse.Namespace) -> list[list[int]]:
    """Token ids of the prompts; raises LabError."""
    for name, value in CPU.items():
        os.environ.setdefault(name, value)
    from llm_rl.evaluation import questions

    tokenizer = load_tokenizer(args.model)
    prompts = [prompt_ids(tokenizer, question.messages, {}) for question in questions.read(args.data, args.prompts)]
    if len(prompts) < args.prompts:
        raise LabError(f"{args.data} has {len(prompts)} questions, fewer than --prompts {args.prompts}")
    return prompts


def chooser(way: str, rng: random.Random) -> tuple[Choose, Callable[[str], None]]:
    """Functions to choose a replica for a request, and to call when the request has ended."""
    if way == "spread":

        def idlest(request_id: str, prompt: list[int], in_flight: Mapping[int, int]) -> int:
            fewest_requests = min(in_flight.values())
            return rng.choice([replica for replica, count in in_flight.items() if count == fewest_requests])

        return idlest, lambda request_id: None
    routes = PromptRoutes() if way == "sticky" else Unbounded()
    return routes.choose, routes.ended


def measure(args: argparse.Namespace, way: str, prompts: list[list[int]]) -> dict[str, Any]:
    """The figures of a way of routing; those of engines are None without a model."""
    rng = random.Random(args.seed)
    choose, ended = chooser(way, random.Random(args.seed))
    replicas = Replicas(args, prompts) if args.model else None
    homes: dict[int, set[int]] = {}
    shares, returned = [], []
    try:
        for number in range(args.steps):
            in_flight = dict.fromkeys(range(args.replicas), 0)
            sent: dict[int, list[tuple[int, int]]] = {replica: [] for replica in in_flight}
            for prompt in rng.sample(range(len(prompts)), args.batch):
                before, homes[prompt] = homes.get(prompt), set()
                for sibling in range(args.n):
                    replica = choose(f"{number}-{prompt}-{sibling}", prompts[prompt], in_flight)
                    in_flight[replica] += 1
                    sent[replica].append((prompt, sibling))
                    homes[prompt].add(replica)
                if before:
                    returned.append(len(before) == 1 and before == homes[prompt])
            shares.append(max(in_flight.values()) * args.replicas / sum(in_flight.values()))
            if replicas:
                replicas.roll_out(number, sent)
            for prompt, sibling in sum(sent.values(), []):
                ended(f"{number}-{prompt}-{sibling}")
        figures = replicas.figures() if replicas else {}
    finally:
        if replicas:
            replicas.stop()
    return {
        **dict.fromkeys(name for _, _, name in COLUMNS),
        **figures,
        "way": way,
        "imbalance": sum(shares) / len(shares),
        "worst": max(shares),
        "returned": sum(returned) / len(returned) if returned else None,
    }


class Unbounded(PromptRoutes):
    """Sticky whatever the imbalance."""

    SLACK = math.inf


class Replicas:
    """Engines that answer the requests sent to each, and their figures."""

    def __init__(self, args: argparse.Namespace, prompts: list[list[int]]) -> None:
        self.args, self.prompts = args, prompts
        settings = {
            "model": args.model,
            "dtype": args.dtype,
            "max_model_len": max(map(len, prompts)) + args.max_tokens,
            "max_num_seqs": args.batch * args.n,
            "enable_prefix_caching": False,
        }
        self.engines = [Engine(settings, args.k, SAM | args.sam) for _ in range(args.replicas)]
        self.seconds, self.steps = 0.0, 0
        self.answers: dict[tuple[int, int, int], list[int]] = {}  # by step, prompt and sibling

    def roll_out(self, number: int, sent: dict[int, list[tuple[int, int]]]) -> None:
        """Answer the (prompt, sibling) that were sent to each replica in step `number`."""
        slowest = 0.0
        for replica, engine in enumerate(self.engines):
            requests = [(self.prompts[p], sampling(self.args, number, p, s)) for p, s in sent[replica]]
            begin = time.perf_counter()
            for i, answer in engine.answers(requests):
                self.answers[number, *sent[replica][i]] = answer.tokens
                self.steps += len(answer.steps)
            slowest = max(slowest, time.perf_counter() - begin)
        self.seconds += slowest

    def figures(self) -> dict[str, Any]:
        """See COLUMNS. Raises LabError if no draft was accepted."""
        counters = [engine.drafter() for engine in self.engines]
        accepted = {name: sum(c[f"accepted_{name}"] for c in counters) for name in (*SOURCES, "corpus")}
        total = sum(accepted.values())
        if not total:
            raise LabError("no draft was accepted: this run shows nothing")
        return {
            "tokens_per_step": sum(map(len, self.answers.values())) / self.steps,
            "acceptance": total / sum(c["proposed"] for c in counters),
            "group": accepted["group"] / total,
            "history": accepted["history"] / total,
            "seconds": self.seconds,
            "answers": hashlib.blake2b(repr(sorted(self.answers.items())).encode(), digest_size=4).hexdigest(),
        }

    def stop(self) -> None:
        for engine in self.engines:
            engine.__exit__()


def sampling(args: argparse.Namespace, step: int, prompt: int, sibling: int) -> dict[str, Any]:
    """Arguments of SamplingParams."""
    seed = request_seed(args.seed, step, prompt, sibling)
    return {"temperature": 1.0, "max_tokens": args.max_tokens, "seed": seed, "detokenize": False}
