# SPDX-License-Identifier: Apache-2.0
"""Predict a recipe's step under every policy, with ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np

from sam_lab.cost import Cost, Die, roofline
from sam_lab.plan.acceptance import Acceptance
from sam_lab.plan.lengths import Lengths
from sam_lab.plan.simulate import Float64, Policy
from sam_lab.plan.step import SWITCHING, Round, Setup, Tails, engines

THRESHOLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SEEDS = (0, 1, 2)
"""Seeds of the lengths for comparing policies, because the engine that gets the longest answer is random."""
WORST = 0.1
"""Share of the samples below the lower end of a range; switches are recommended by this end."""


def tail_contexts(prompt: int, answers: Sequence[int], slots: int) -> Float64:
    """[slots + 1], mean thousands of tokens per request while n requests still run; `answers` in ascending order."""
    contexts = np.zeros(slots + 1)
    for n in range(1, slots + 1):
        contexts[n] = (prompt + answers[-min(n, len(answers))]) / 1000
    return contexts


@dataclass(frozen=True)
class Inputs:
    """Inputs of a plan."""

    plan: Setup
    lengths: Lengths
    cost: Cost
    acceptance: Acceptance

    def varied(self, rng: np.random.Generator, device: Die | None, likely: tuple[float, float]) -> Inputs:
        """These inputs with random costs, acceptance and lengths. likely: bounds of the factor of acceptance."""
        factor = float(rng.uniform(*likely))
        if device is None:  # fitted to a log
            cost = self.cost.scaled(float(rng.uniform(0.95, 1.05)))
        else:
            device = replace(
                device,
                weights_share=float(np.clip(device.weights_share * rng.uniform(0.75, 1.2), 0.1, 1)),
                context_share=float(np.clip(device.context_share * rng.uniform(0.6, 1.4), 0.1, 1)),
                collective=device.collective * float(rng.uniform(0.4, 2)),
                exchange=device.exchange * float(rng.uniform(0.5, 3)),
                launch=device.launch * float(rng.uniform(0.8, 1.2)),
                draft_context=float(rng.uniform(0, 2)),
                verify=float(rng.uniform(device.verify, max(device.verify, device.max_verify))),
            )
            cost = roofline(self.plan.shape, self.plan.tensor, self.plan.expert, device, self.plan.eager)
        lengths = self.lengths.longer(float(rng.uniform(0.8, 1.2)))
        return replace(self, lengths=lengths, cost=cost, acceptance=self.acceptance.scaled(factor))


def seconds_of_step(plan: Setup, longest: float, trained: float) -> tuple[float, float]:
    """Seconds of rollout and step, from the slowest engine's round and the trained tokens."""
    rollout = plan.rounds * (longest + SWITCHING)
    return rollout, rollout + plan.training * trained * plan.shape.active_parameters / plan.dies


def rounds_of(
    inputs: Inputs, seed: int, pairs: Sequence[tuple[int, int]], progress: Callable[[], None]
) -> dict[Any, Round]:
    """Rounds with the same lengths under `off`, under `batch` with each (threshold, k), and under `auto`."""
    plan, cost = inputs.plan, inputs.cost
    lengths = inputs.lengths.sample(plan.gen_prompts, plan.n, np.random.default_rng(seed))
    late = [threshold for threshold, _ in pairs if threshold < plan.slots]

    @cache
    def started(k: int) -> tuple[Tails, Tails]:
        """Engines with memory for drafts of k tokens: before their first step, and where the tail begins."""
        loaded = engines(plan, lengths, k)
        fresh = Tails(plan, cost, tuple(engine.copy() for engine in loaded), plan.slots)
        return fresh, Tails.of(plan, cost, loaded, max(late, default=plan.threshold))

    def room(k: int) -> int:
        return k if plan.shape.nets else 0  # others need none

    results: dict[Any, Round] = {"off": started(0)[1].run(Policy.off(plan.slots), plan.threshold)}
    for threshold, k in pairs:
        progress()
        fresh, tails = started(room(k))
        policy = inputs.acceptance.batch(plan.slots, min(threshold, plan.slots), k)
        # ranks that meet in every step draft as soon as few run on them, whatever the others do
        whole = plan.data > 1 or threshold >= plan.slots
        results[threshold, k] = (fresh if whole else tails).run(policy, plan.threshold)
    progress()
    per_rank = np.sort(lengths.ravel())[:: plan.ranks]
    contexts = tail_contexts(plan.prompt_tokens, per_rank.tolist(), plan.slots)
    policy = inputs.acceptance.auto(plan.slots, cost, contexts)
    results["auto"] = started(room(plan.k))[0].run(policy, plan.threshold)
    return results


def study(
    inputs: Inputs,
    draws: int,
    device: Die | None,
    likely: tuple[float, float],
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The figures of the report.

    `figures` are medians over the samples, `ranges` their 10 to 90 % intervals. `best` is the batch switch with the
    highest gain in the worst tenth of the samples. `traces` are those of the first round, for the picture.
    """
    plan = inputs.plan
    current = (min(plan.threshold, plan.slots), plan.k)
    thresholds = [t for t in THRESHOLDS if t <= plan.slots]
    grid = sorted({(t, k) for t in thresholds for k in inputs.acceptance.ks if k <= 8} | {current})
    rounds = [
        rounds_of(inputs, seed, grid, partial(progress, f"policies, lengths {number} of {len(SEEDS)}"))
        for number, seed in enumerate(SEEDS, 1)
    ]
    gains = {
        key: float(np.mean([of_seed["off"].longest / of_seed[key].longest for of_seed in rounds]))
        for key in [*grid, "auto"]
    }
    candidates = [max((pair for pair in grid if pair[0] == t), key=gains.__getitem__) for t in thresholds]
    pairs = sorted({current, *candidates})
    keys: list[Any] = ["off", "auto", *pairs]
    samples: list[dict[Any, dict[str, float]]] = []
    for draw in range(1, draws + 1):
        world = inputs.varied(np.random.default_rng([11, draw]), device, likely)
        of_world = rounds_of(world, draw, pairs, partial(progress, f"world {draw} of {draws}"))
        samples.append({key: _figures(world, of_world, key, draw) for key in keys})
    found = {key: {what: [of[key][what] for of in samples] for what in samples[0][key]} for key in keys}
    best = max(candidates, key=lambda pair: np.quantile(found[pair]["rollout_gain"], [WORST, 0.5]).tolist())
    chosen = {"off": "off", "batch": current, "best": best, "auto": "auto"}
    figures = {name: {what: float(np.median(of)) for what, of in found[key].items()} for name, key in chosen.items()}
    ranges = {
        name: {what: np.quantile(of, [WORST, 1 - WORST]).tolist() for what, of in found[key].items()}
        for name, key in chosen.items()
    }
    return {
        "figures": figures,
        "ranges": ranges,
        "own": current,
        "best": best,
        "grid": [{"threshold": t, "k": k, "gain": gains[t, k]} for t, k in grid],
        "auto_gain": gains["auto"],
        "traces": {name: max(rounds[0][key].traces, key=attrgetter("total")) for name, key in chosen.items()},
    }


def _figures(inputs: Inputs, rounds: dict[Any, Round], key: Any, seed: int) -> dict[str, float]:
    plan, off, now = inputs.plan, rounds["off"], rounds[key]
    lengths = inputs.lengths.sample(plan.gen_prompts, plan.n, np.random.default_rng(seed))
    trained = plan.train_prompts * plan.n * (float(lengths.mean()) + plan.prompt_tokens)
    rollout, step = seconds_of_step(plan, now.longest, trained)
    rollout_off, step_off = seconds_of_step(plan, off.longest, trained)
    return {
        "round_s": now.mean,
        "rollout_s": rollout,
        "step_s": step,
        "rollout_gain": rollout_off / rollout,
        "step_gain": step_off / step,
        "tail_share": now.tail / now.mean,
        "tail_gain": off.tail / now.tail if off.tail and now.tail else 1.0,
        "preempted": float(sum(trace.preempted for trace in now.traces)),
    }
