# SPDX-License-Identifier: Apache-2.0
"""The article's three clusters: fit what is unknown on one, predict the other two, state the errors.

Quoted from the article; measured by its authors on 910C with vLLM 0.11.0rc0 in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llm_rl.layout import GIB, SHAPES
from sam_lab.plan.acceptance import given
from sam_lab.plan.cost import DEVICES, Cost, Device, roofline
from sam_lab.plan.lengths import Lengths
from sam_lab.plan.simulate import Policy
from sam_lab.plan.step import Setup, Tails, engines

LIMIT = 34816
TAIL = 1.35
"""Speed in the tail, quoted; the article does not say of which cluster."""
MEAN_235B = 10119.0
"""Tokens of an answer of Qwen3-235B, quoted from the recipe published beside the article (32k rollouts)."""
SWITCHING = 40.0
"""Seconds a round of exchanging weights: an assumption, of the order that the article's rollouts leave for it."""
KV_GIB = {"32b": 38.0, "235b": 41.0, "customer": 38.0}
"""GiB a die for keys and values: 64 GiB x gpu_memory_utilization (0.8, 0.85) less weights and 4 to 8 GiB."""


def _cluster(name: str, model: str, *sizes: int, **more: Any) -> Setup:
    shape = SHAPES[model]
    dies, tensor, data, expert, train, gen, slots = sizes
    capacity = KV_GIB[name] * GIB / shape.kv_bytes(tensor)
    return Setup(name, shape, dies, tensor, data, expert, train, gen, 16, slots, LIMIT, capacity, **more)


CLUSTERS = {
    "32b": _cluster("32b", "Qwen3-32B", 32, 8, 1, 1, 32, 96, 128),
    "235b": _cluster("235b", "Qwen3-235B-A22B", 128, 4, 32, 128, 128, 128, 64, rounds=2),
    "customer": _cluster("customer", "Qwen3-32B", 128, 8, 1, 1, 512, 1536, 256, threshold=4, k=4),
}
"""n = 16 as the published recipe, the article does not state it; two rounds of the 235B: its rollout takes two rounds'."""

ARTICLE = {
    "32b": {"round": (3904.22, 3548.62), "rollout": (4159.06, 3793.29), "step": (4730.86, 4374.99)},
    "235b": {"round": (7102.92, 6467.52), "rollout": (14287.54, 12811.98), "step": (15441.45, 13960.98)},
    "customer": {"rollout": (9094.0, 8223.0), "step": (11870.0, 11000.0)},
}
"""Seconds without and with SAM. round: mean over the data-parallel ranks; rollout: of a training step; step: in all."""


@dataclass(frozen=True)
class Assumed:
    """Assumptions beside the article and the fit. switching: seconds a round of exchanging weights."""

    device: Device
    spread: float = 0.9
    together: float = 0.5
    family: str = "lognormal"
    tail: float = TAIL
    switching: float = SWITCHING
    later: float = 0.6
    mean_235b: float = MEAN_235B
    memory: float = 1.0

    @staticmethod
    def drawn(rng: np.random.Generator) -> Assumed:
        """Random assumptions within their bounds."""

        def between(low: float, high: float) -> float:
            return float(rng.uniform(low, high))

        device = replace(
            DEVICES["910C"],
            weights_share=between(0.5, 0.85),
            context_share=between(0.3, 0.7),
            collective=between(10e-6, 50e-6),
            exchange=between(50e-6, 300e-6),
            draft_context=between(0.0, 1.0),
        )
        return Assumed(
            device,
            spread=between(0.75, 1.05),
            together=between(0.2, 0.8),
            tail=between(1.3, 1.4),
            switching=between(20, 80),
            later=between(0.4, 0.8),
            mean_235b=between(0.7, 1.3) * MEAN_235B,
            memory=between(0.85, 1.1),
        )


@dataclass(frozen=True)
class Fit:
    """launch: host seconds an operator; mean: tokens of an answer of the 32B; first: acceptance of a first draft token;
    training: seconds a trained token and active parameter, of one die."""

    launch: float
    mean: float
    first: float
    training: float


NOMINAL = Fit(launch=1.1e-4, mean=5095.0, first=0.18, training=2.1e-13)
"""The fit of `compare` under the nominal assumptions, rounded."""


class Model:
    """Predictions under one set of assumptions. seeds: of the answers' lengths, averaged over."""

    def __init__(self, assumed: Assumed, seeds: tuple[int, ...]) -> None:
        self.assumed = assumed
        self.seeds = seeds

    def cost(self, plan: Setup, launch: float) -> Cost:
        return roofline(plan.shape, plan.tensor, plan.expert, replace(self.assumed.device, launch=launch))

    def lengths(self, plan: Setup, mean: float) -> Lengths:
        mean = self.assumed.mean_235b if plan.shape.experts else mean
        return Lengths(mean, self.assumed.spread, LIMIT, self.assumed.family, self.assumed.together)

    def generate(self, plan: Setup, fit: Fit) -> dict[str, tuple[float, float]]:
        """Seconds without and with SAM: round, longest, tail; and the share of the round that the tail takes."""
        plan = replace(plan, capacity=plan.capacity * self.assumed.memory)
        cost, lengths = self.cost(plan, fit.launch), self.lengths(plan, fit.mean)
        drafts = given(fit.first, self.assumed.later, (plan.k,)).batch(plan.slots, plan.threshold, plan.k)
        result = []
        for seed in self.seeds if plan.dies == 32 else self.seeds[:1]:  # more dies average by themselves
            loaded = engines(plan, lengths.sample(plan.gen_prompts, plan.n, np.random.default_rng(seed)))
            for_drafts = [engine.copy() for engine in loaded] if plan.data > 1 else []
            tails = Tails.of(plan, cost, loaded, plan.threshold)
            off = tails.run(Policy.off(plan.slots), plan.threshold)
            if plan.data > 1:  # a rank drafts as soon as few run on it, whatever the others do
                tails = Tails(plan, cost, tuple(for_drafts), plan.slots)
            on = tails.run(drafts, plan.threshold)
            result.append([(off.mean, on.mean), (off.longest, on.longest), (off.tail, on.tail)])
        means = np.mean(result, axis=0).tolist()
        return dict(zip(("round", "longest", "tail"), map(tuple, means), strict=True))

    def fit(self) -> Fit:
        """On the 32B on 32 dies: launch and mean from its mean round without and with SAM, acceptance from the tail's
        speed, training from what its step takes beside the rollout."""
        plan, (off, on) = CLUSTERS["32b"], ARTICLE["32b"]["round"]
        launch = 1.1e-4

        def gain(mean: float) -> float:
            nonlocal launch
            for _ in range(2):
                result = self.generate(plan, Fit(launch, mean, self._first(plan, launch), 0.0))
                launch *= off / result["round"][0]
            return result["round"][0] / result["round"][1] - off / on

        mean = _root(gain, 3000.0, 9000.0, 5e-4)
        result = self.generate(plan, Fit(launch, mean, self._first(plan, launch), 0.0))
        launch *= off / result["round"][0]
        training = ARTICLE["32b"]["step"][0] - ARTICLE["32b"]["rollout"][0]
        return Fit(launch, mean, self._first(plan, launch), training / self._work(plan, mean))

    def _first(self, plan: Setup, launch: float) -> float:
        """Acceptance of the first draft token with which few requests, at half the longest context, reach the tail's speed."""
        cost, n, k = self.cost(plan, launch), 4, plan.k
        held = n * LIMIT / 2
        of, none = np.array([held]), np.zeros(1)
        plain = cost.stretch(1, np.array([n]), of, none, none, none)
        with_drafts = cost.stretch(1, np.array([n * (1 + k)]), of, none, k * of, none)
        gain = self.assumed.tail * with_drafts / plain - 1
        return min(1.0, gain / sum(self.assumed.later**j for j in range(k)))

    def _work(self, plan: Setup, mean: float) -> float:
        """Trained tokens times active parameters, a die."""
        tokens = plan.train_prompts * plan.n * (self.lengths(plan, mean).mean + plan.prompt_tokens)
        return tokens * plan.shape.active_parameters / plan.dies

    def predict(self, name: str, fit: Fit) -> dict[str, tuple[float, float]]:
        """The article's quantities, and the tail's speed and share of the round without SAM."""
        plan = CLUSTERS[name]
        result = self.generate(plan, fit)
        off, on = (plan.rounds * (seconds + self.assumed.switching) for seconds in result["longest"])
        training = fit.training * self._work(plan, fit.mean)
        quantities = {"round": result["round"], "rollout": (off, on), "step": (off + training, on + training)}
        tail, tail_on = result["tail"]
        in_tail = tail / result["round"][0], tail / tail_on if tail_on else 1.0
        return {what: quantities[what] for what in ARTICLE[name]} | {"tail": in_tail}


def _root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Zero of a falling function, by the Illinois method; the nearer end if it has none in between."""
    at_low, at_high = function(low), function(high)
    if at_low * at_high > 0:
        return low if abs(at_low) < abs(at_high) else high
    for _ in range(12):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = function(middle)
        if abs(value) < tolerance:
            return middle
        if value * at_low > 0:
            low, at_low, at_high = middle, value, at_high / 2
        else:
            high, at_high, at_low = middle, value, at_low / 2
    return middle


def compare(draws: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Predictions beside the article's figures, and their 10 to 90 % range over `draws` random assumptions."""
    model = Model(Assumed(DEVICES["910C"]), (1, 2, 3))
    fit = model.fit()
    rows = list(_rows(model, fit))
    others = []
    for draw in range(draws):
        progress(f"world {draw + 1} of {draws}")
        world = Model(Assumed.drawn(np.random.default_rng([7, draw])), (draw,))
        others.append([row["predicted"] for row in _rows(world, world.fit())])
    if others:
        low, high = np.quantile(others, [0.1, 0.9], axis=0)
        for row, a, b in zip(rows, low, high, strict=True):
            row["low"], row["high"] = float(a), float(b)
    return {"fit": vars(fit), "rows": rows, "draws": draws}


def _rows(model: Model, fit: Fit) -> Iterator[dict[str, Any]]:
    for name, quantities in ARTICLE.items():
        predicted = model.predict(name, fit)
        for what, (off, on) in quantities.items():
            a, b = predicted[what]
            for kind, value, result in (("off", off, a), ("on", on, b), ("gain", off / on - 1, a / b - 1)):
                error = result - value if kind == "gain" else result / value - 1
                row = {"cluster": name, "what": what, "sam": kind, "article": value, "predicted": result}
                yield row | {"error": error, "fitted": name == "32b" and what == "round"}
        speed = predicted["tail"][1]
        row = {"cluster": name, "what": "tail", "sam": "speed", "article": TAIL, "predicted": speed}
        yield row | {"error": speed / TAIL - 1, "fitted": name == "32b"}
