# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab plan-article`: fit the planner to one of the article's clusters, predict the other measurements,
and say whether each lies inside its range.

Fitted, all on Qwen3-32B on 32 dies:
  the mean answer: the mean of image 40's training steps, without SAM;
  the host's time per launch: both stages of image 42 without SAM, on the slowest rank;
  the spread of lengths: the value of SPREADS whose tail is closest to image 42's without SAM (none reaches it);
  tokens per step: image 38, by position in the answer;
  the additional time of a verifying step: the tail of image 42 with SAM;
  training: what the article's training step without SAM takes in addition to its rollout.
Predicted without another fit: that cluster's mean round; the other two clusters; GRPO and DAPO of the repository's
later head; vllm-ascend's table of suffix decoding.

Rules, set before any prediction was seen:
  * a range is the 10th to 90th percentile of random worlds (`Assumptions.drawn`), each with its own fit; "inside" means
    inside this range;
  * the additional time of a verifying step is the same per layer for all models, as waits in attention are;
  * vllm-ascend 0.13 and later do not wait there (read in its source), so the later runs and the table are predicted
    without this time; in random worlds a share of it between 0 and 1 stays, as it may have other causes;
  * graphs: no host time per launch; in random worlds a share between 0 and a half stays;
  * GRPO uses another data set, whose lengths are not published: the article's mean, in random worlds x 0.5 to 1.3.
    DAPO's first step has the lengths of the first step of image 40;
  * the table: its own times per step without drafts and its own accepted share; drafts of 2.25 tokens, in random worlds
    1.5 to 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.files import write_json

from llm_rl.shape import SHAPES
from sam_lab.cli import check_outputs, non_negative
from sam_lab.plan.acceptance import Acceptance, of_article
from sam_lab.plan.check import tail_contexts
from sam_lab.plan.cost import DIES, Cost, Die, roofline
from sam_lab.plan.lengths import Lengths
from sam_lab.plan.quoted import ARTICLE, CLUSTERS, LATER, LIMIT, MEAN_235B, MEAN_LENGTHS, STAGES, SUFFIX, Served
from sam_lab.plan.simulate import Policy, Trace
from sam_lab.plan.step import SPREAD, SWITCHING, TRAINING, Round, Setup, Tails, engines

THRESHOLDS = (4, 8, 16, 32, 64, 128)
FEW = 8
"""Requests of image 42's tail."""
SEEDS = (1, 2, 3, 4, 5, 6)
"""Seeds of the lengths under the nominal assumptions."""
SPREADS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)


SHOWN = {"s": (1, "{:,.0f} s"), "gain": (100, "{:.1f} %")}
"""Factors and formats of the article's figures."""
COVERAGE = 0.8
"""Share of the measured values that should lie inside the 10 to 90 % range."""
FITTED = {
    "launch": ("host time a launch, us", 1e6),
    "spread": ("spread of the lengths", 1),
    "tail": ("tail's share of the rollout (image 42: 0.345)", 1),
    "tokens": ("tokens that a request gains in a verifying step of the tail", 1),
    "ratio": ("a verifying step, times a decoding step", 1),
    "verify": ("what it takes beyond, ms per layer", 1e3),
}
STACKS = {
    "article": "the article's stack, verifying steps wait",
    "no waits": "without these waits",
    "graphs": "without waits, graphs with SAM and without",
}


@dataclass(frozen=True)
class Assumptions:
    """Assumptions that are not among the quoted figures.

    family, together: distribution of the lengths, whose spread is fitted.
    switching: seconds per round.
    accepted: factor of image 38's accepted tokens (an 8B, greedy) for a 32B that samples.
    later: acceptance of a draft token after an accepted one.
    memory: factor of the memory for keys and values.
    later_launch, graph_floor, paid: launch time, floor with graphs and cost of a verifying step in the later stacks, as
        shares of the fitted ones.
    ngram: factor of the accepted tokens in a later stack.
    drafted: tokens per draft in the table of suffix decoding.
    """

    device: Die
    mean: float
    mean_grpo: float
    mean_dapo: float
    mean_235b: float = MEAN_235B
    family: str = "lognormal"
    together: float = 0.5
    switching: float = SWITCHING
    accepted: float = 1.0
    later: float = 0.7
    memory: float = 1.0
    later_launch: float = 1.0
    graph_floor: float = 0.0
    paid: float = 0.0
    ngram: float = 1.0
    drafted: float = 2.25

    @staticmethod
    def nominal() -> Assumptions:
        mean = float(np.mean(MEAN_LENGTHS))
        return Assumptions(DIES["910C"], mean, mean, float(MEAN_LENGTHS[0]))

    @staticmethod
    def drawn(rng: np.random.Generator) -> Assumptions:
        """Random assumptions within their bounds."""

        def between(low: float, high: float) -> float:
            return float(rng.uniform(low, high))

        device = replace(
            DIES["910C"],
            weights_share=between(0.5, 0.85),
            context_share=between(0.3, 0.7),
            collective=between(10e-6, 50e-6),
            exchange=between(50e-6, 300e-6),
            draft_context=between(0.0, 2.0),
        )
        mean = between(min(MEAN_LENGTHS), max(MEAN_LENGTHS))
        return Assumptions(
            device,
            mean,
            mean_grpo=between(0.5, 1.3) * mean,
            mean_dapo=between(0.8, 1.2) * MEAN_LENGTHS[0],
            mean_235b=between(0.7, 1.3) * MEAN_235B,
            family=str(rng.choice(["lognormal", "weibull"])),
            together=between(0.2, 0.8),
            switching=between(0, 80),
            accepted=between(0.7, 1.1),
            later=between(0.6, 0.85),
            memory=between(0.85, 1.1),
            later_launch=between(0.7, 1.1),
            graph_floor=between(0.0, 0.5),
            paid=between(0.0, 1.0),
            ngram=between(0.4, 1.0),
            drafted=between(1.5, 3.0),
        )


@dataclass(frozen=True)
class Fit:
    """What was fitted to the article.

    launch: host seconds per operator. spread: spread of the lengths. tail: share of the slowest rank's time in which
    few requests run; the spread brings it closest to image 42's. verify: additional seconds per layer of a verifying
    step. ratio: time of a verifying step over that of a decoding one, in the tail. tokens: tokens that a request gains
    in a verifying step there. training: die seconds per trained token and active parameter."""

    launch: float
    spread: float
    tail: float
    verify: float
    ratio: float
    tokens: float
    training: float


NOMINAL = Fit(launch=8.2e-5, spread=SPREAD, tail=0.25, verify=9.0e-4, ratio=1.8, tokens=2.4, training=TRAINING)
"""The fit of `compare` under the nominal assumptions, rounded."""


class Model:
    """Predictions under one set of assumptions, averaged over `seeds` of the answers' lengths."""

    def __init__(self, world: Assumptions, seeds: tuple[int, ...]) -> None:
        self.world = world
        self.seeds = seeds
        self.loaded = cache(self._loaded)

    def acceptance(self, plan: Setup, factor: float = 1.0) -> Acceptance:
        return of_article(self.world.later, self.world.accepted * factor, (plan.k,))

    def cost(self, plan: Setup, launch: float, verify: float = 0.0) -> Cost:
        device = replace(self.world.device, launch=launch, verify=verify)
        return roofline(plan.shape, plan.tensor, plan.expert, device)

    def mean(self, name: str) -> float:
        others = {"235b": self.world.mean_235b, "grpo": self.world.mean_grpo, "dapo": self.world.mean_dapo}
        return others.get(name, self.world.mean)

    def _loaded(self, name: str, spread: float, seed: int) -> tuple[Setup, list[Any]]:
        """A cluster's engines with their requests."""
        plan = CLUSTERS[name]
        plan = replace(plan, capacity=plan.capacity * self.world.memory)
        lengths = Lengths(self.mean(name), spread, LIMIT, self.world.family, self.world.together)
        return plan, engines(plan, lengths.sample(plan.gen_prompts, plan.n, np.random.default_rng(seed)))

    def rounds(self, name: str, fit: Fit, stages: dict[str, tuple[Cost, Acceptance | None]]) -> list[dict[str, Round]]:
        """For each seed, a round per stage: with its cost, and with drafts of its acceptance or without."""
        results = []
        for seed in self.seeds if CLUSTERS[name].dies == 32 else self.seeds[:1]:  # more dies average by themselves
            plan, loaded = self.loaded(name, fit.spread, seed)
            found = {}
            for stage, (cost, acceptance) in stages.items():
                policy = Policy.off(plan.slots)
                if acceptance:
                    policy = acceptance.batch(plan.slots, plan.threshold, plan.k)
                tails = Tails(plan, cost, tuple(loaded), plan.slots)
                found[stage] = tails.run(policy, plan.threshold)
            results.append(found)
        return results

    def fit(self) -> Fit:
        normal, tail = STAGES["off"]["normal"] - self.world.switching, STAGES["off"]["tail"]
        fits = [self._launched(spread, normal + tail) for spread in SPREADS]
        fit = min(fits, key=lambda fit: abs(fit.tail - tail / (normal + tail)))
        return self._verify(fit)

    def _launched(self, spread: float, seconds: float) -> Fit:
        """A fit whose launch time makes the slowest rank take `seconds`."""
        plan, launch = CLUSTERS["32b"], DIES["910C"].launch
        for _ in range(3):
            fit = replace(NOMINAL, launch=launch, spread=spread)
            rounds = [found["off"] for found in self.rounds("32b", fit, {"off": (self.cost(plan, launch), None)})]
            launch *= seconds / float(np.mean([round_.longest for round_ in rounds]))
        tail = float(np.mean([_slowest(round_).tail(FEW) / round_.longest for round_ in rounds]))
        training = ARTICLE["32b"]["step"][0] - ARTICLE["32b"]["rollout"][0]
        return replace(fit, launch=launch, tail=tail, training=training / self._work("32b"))

    def _verify(self, fit: Fit) -> Fit:
        """The fit with the time of a verifying step at which drafts shorten the slowest rank's tail as in image 42."""
        plan = CLUSTERS["32b"]
        drafts, each = self.acceptance(plan), 1e-4
        stages = {"off": (self.cost(plan, fit.launch), None), "free": (self.cost(plan, fit.launch), drafts)}
        stages["dear"] = self.cost(plan, fit.launch, each), drafts
        seconds, steps = [], []
        for found in self.rounds("32b", fit, stages):
            rank = found["off"].traces.index(_slowest(found["off"]))
            traces = [found[stage].traces[rank] for stage in stages]
            seconds.append([trace.tail(FEW) for trace in traces])
            steps.append([np.array(trace.steps)[trace.max_running() <= FEW].sum() for trace in traces])
        (off, free, dear), (plain, verifying, _) = np.mean(seconds, axis=0).tolist(), np.mean(steps, axis=0).tolist()
        verify = max(0.0, each * (STAGES["on"]["tail"] / STAGES["off"]["tail"] * off - free) / (dear - free))
        on = free + (dear - free) * verify / each
        return replace(fit, verify=verify, ratio=on / verifying / (off / plain), tokens=plain / verifying)

    def _work(self, name: str) -> float:
        """Trained tokens times active parameters, per die."""
        plan = CLUSTERS[name]
        tokens = plan.train_prompts * plan.n * (self.mean(name) + plan.prompt_tokens)
        return tokens * plan.shape.active_parameters / plan.dies

    def cluster(self, name: str, fit: Fit) -> dict[str, tuple[float, float]]:
        """The article's quantities without and with SAM."""
        plan = CLUSTERS[name]
        cost = self.cost(plan, fit.launch, fit.verify)
        found = self.rounds(name, fit, {"off": (cost, None), "on": (cost, self.acceptance(plan))})
        rounds, longest = ([_mean(found, stage, what) for stage in ("off", "on")] for what in ("mean", "longest"))
        rollout = [plan.rounds * (seconds + self.world.switching) for seconds in longest]
        training = fit.training * self._work(name)
        quantities = {"round": rounds, "rollout": rollout, "step": [seconds + training for seconds in rollout]}
        return {what: (quantities[what][0], quantities[what][1]) for what in ARTICLE[name]}

    def later(self, name: str, fit: Fit) -> dict[str, float]:
        """Seconds of a round of the repository's later head: eager, with SAM, with SAM and graphs."""
        plan = CLUSTERS[name]
        cost = self.cost(plan, fit.launch * self.world.later_launch, fit.verify * self.world.paid)
        graph = replace(cost, floor=cost.floor * self.world.graph_floor)
        drafts = self.acceptance(plan, self.world.ngram)
        found = self.rounds(name, fit, {"off": (cost, None), "on": (cost, drafts), "graph": (graph, drafts)})
        return {stage: _mean(found, stage, "mean") for stage in ("off", "on", "graph")}

    def served(self, row: Served, fit: Fit) -> float:
        """Gain of throughput in a row of the table; the quoted time of its step without drafts is the host's floor."""
        shape = SHAPES["Qwen3-32B"]
        cost = roofline(shape, 4, 1, replace(self.world.device, verify=fit.verify * self.world.paid), eager=False)
        cost = replace(cost, floor=row.tpot_ms / 1000)
        context = np.array([row.running * (row.prompt + row.answer / 2)])
        drafted, none = self.world.drafted, np.zeros(1)
        rows = np.array([row.running * (1 + drafted)])
        seconds = cost.stretch(1, rows, context, none, drafted * context, none)
        return (1 + row.accepted * drafted) * cost.floor / seconds - 1

    def thresholds(self, fit: Fit) -> dict[tuple[str, int | str], float]:
        """Gain of the 32B's slowest rank, by threshold and with switch `auto`: with the article's verifying step, with
        one that does not wait, and without waits and with graphs in both arms."""
        plan, loaded = self.loaded("32b", fit.spread, self.seeds[0])
        drafts = self.acceptance(plan)
        costs = {"article": self.cost(plan, fit.launch, fit.verify), "no waits": self.cost(plan, fit.launch)}
        costs["graphs"] = replace(costs["no waits"], floor=costs["no waits"].floor * self.world.graph_floor)
        lengths = np.sort(np.concatenate([engine.answers[0] for engine in loaded]))[:: plan.ranks]
        contexts = tail_contexts([(plan.prompt_tokens, int(length)) for length in lengths], plan.slots)
        gains: dict[tuple[str, int | str], float] = {}
        for stack, cost in costs.items():
            tails = Tails(plan, cost, tuple(loaded), plan.slots)
            off = tails.run(Policy.off(plan.slots), FEW).longest
            policies: dict[int | str, Policy] = {n: drafts.batch(plan.slots, n, plan.k) for n in THRESHOLDS}
            policies["auto"] = drafts.auto(plan.slots, cost, contexts)
            for threshold, policy in policies.items():
                gains[stack, threshold] = off / tails.run(policy, FEW).longest - 1
        return gains


def _mean(found: list[dict[str, Round]], stage: str, what: str) -> float:
    return float(np.mean([getattr(rounds[stage], what) for rounds in found]))


def _slowest(round_: Round) -> Trace:
    return max(round_.traces, key=lambda trace: trace.total)


def compare(draws: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The fit, the predictions and what was measured.

    Values are medians over `draws` random worlds (0: those of the nominal world), low and high their 10 to 90 %. The
    ranges of predictions are widened as far as the other runs require (see `_widen`).
    """
    worlds = [(Assumptions.drawn(np.random.default_rng([7, draw])), (draw, draw + 1000)) for draw in range(draws)]
    found = []
    for number, (world, seeds) in enumerate(worlds or [(Assumptions.nominal(), SEEDS)], 1):
        progress(f"world {number} of {draws}" if draws else "nominal world")
        model = Model(world, seeds)
        fit = model.fit()
        gains = model.thresholds(fit)
        advice: list[dict[str, Any]] = []
        for (stack, n), gain in gains.items():
            advice.append({"stack": stack, "threshold": n, "predicted": gain})
        found.append((vars(fit), list(_rows(model, fit)), advice))
    fits, rows, advice = found[0][0], found[0][1], found[0][2]
    result = {"fit": {name: _values([of[0][name] for of in found], "value") for name in fits}, "draws": draws}
    for place, row in enumerate(rows):
        row |= _values([of[1][place]["predicted"] for of in found], "predicted")
    for place, row in enumerate(advice):
        row |= _values([of[2][place]["predicted"] for of in found], "predicted")
    return result | {"widened": _widen(rows, advice) if draws > 1 else {}, "rows": rows, "thresholds": advice}


def _values(values: list[float], name: str) -> dict[str, float]:
    if len(values) == 1:
        return {name: values[0]}
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9]).tolist()
    return {name: middle, "low": low, "high": high}


def _widen(rows: list[dict[str, Any]], advice: list[dict[str, Any]]) -> dict[str, float]:
    """Widen the ranges around their medians until they hold COVERAGE of the measured values; note which lie inside.

    A run's ranges are widened by the factor that the other runs need, so coverage is measured on runs that were left
    out; the range of `advice` by the factor that all runs need. Ranges of seconds are widened on a logarithmic scale.
    Returns the factors.
    """
    needed: dict[str, list[float]] = {}
    for row in rows:
        if not row["fitted"]:
            needed.setdefault(_run(row), []).append(_miss(row))
    factors = {run: _factor([of for other, of in needed.items() if other != run]) for run in needed}
    for row in rows:
        if not row["fitted"]:
            _stretch(row, factors[_run(row)])
            row["inside"] = row["low"] <= row["measured"] <= row["high"]
    factors["thresholds"] = _factor([*needed.values()])
    for row in advice:
        _stretch(row, factors["thresholds"])
    return factors


def _run(row: dict[str, Any]) -> str:
    return "served" if "running" in row["what"] else str(row["of"])


def _factor(needed: list[list[float]]) -> float:
    """The factor that COVERAGE of the figures need; each run has the same weight."""
    figures = sorted((value, 1 / len(of_run)) for of_run in needed for value in of_run)
    enough = np.cumsum([weight for _, weight in figures]) >= COVERAGE * len(needed) - 1e-9
    return max(1.0, figures[int(np.argmax(enough))][0])


def _scaled(row: dict[str, Any], value: float) -> float:
    return float(np.log(value)) if row.get("kind") == "s" else value


def _miss(row: dict[str, Any]) -> float:
    """Distance of the measured value from the median, in units of the range's half on that side."""
    measured, middle, low, high = (_scaled(row, row[name]) for name in ("measured", "predicted", "low", "high"))
    half = high - middle if measured > middle else middle - low
    return abs(measured - middle) / max(half, 1e-9)


def _stretch(row: dict[str, Any], factor: float) -> None:
    middle = _scaled(row, row["predicted"])
    for name in ("low", "high"):
        value = middle + factor * (_scaled(row, row[name]) - middle)
        row[name] = float(np.exp(value)) if row.get("kind") == "s" else value


def _rows(model: Model, fit: Fit) -> Iterator[dict[str, Any]]:
    """measured, predicted: seconds, or of kind "gain" without / with drafts - 1."""

    def row(of: str, what: str, sam: str, measured: float, predicted: float, fitted: bool = False) -> dict[str, Any]:
        values = {"measured": measured, "predicted": predicted, "fitted": fitted}
        return {"of": of, "what": what, "sam": sam} | values | {"kind": "gain" if "gain" in sam else "s"}

    for name, quantities in ARTICLE.items():
        predicted = model.cluster(name, fit)
        for what, (off, on) in quantities.items():
            a, b = predicted[what]
            fitted = name == "32b" and what != "round"
            yield row(name, what, "off", off, a, fitted)
            yield row(name, what, "on", on, b, fitted)
            yield row(name, what, "gain", off / on - 1, a / b - 1, fitted)
    for name, seconds in LATER.items():
        later = model.later(name, fit)
        for stage in ("off", "on", "graph"):
            yield row(name, "round", stage, seconds[stage], later[stage])
        for stage in ("on", "graph"):
            measured, expected = (of["off"] / of[stage] - 1 for of in (seconds, later))
            yield row(name, "round", f"gain, {stage}", measured, expected)
    for served in SUFFIX:
        yield row(served.data, f"{served.running} running", "gain", served.gain, model.served(served, fit))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--draws", type=non_negative, default=10, metavar="N", help="samples of the assumptions (%(default)s)")
    add("--json", type=Path, metavar="OUT", help="write all figures here")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    check_outputs(args, "json")
    progress = Progress()
    result = compare(args.draws, progress.show)
    progress.clear()
    print("fitted to the article's Qwen3-32B on 32 dies, with 10 to 90 % of the worlds:")
    for name, (what, factor) in FITTED.items():
        entry = result["fit"][name]
        span = f"{factor * entry['low']:.4g} to {factor * entry['high']:.4g}" if "low" in entry else ""
        print(f"  {what:58}{factor * entry['value']:>8.4g}   {span}")
    print(f"\n{'of':10}{'':12}{'SAM':13}{'measured':>10}{'predicted':>11}{'error':>10}   10 to 90 %")
    for row in result["rows"]:
        factor, form = SHOWN[row["kind"]]
        shown = {
            name: form.format(factor * row[name]) for name in ("measured", "predicted", "low", "high") if name in row
        }
        gain = row["kind"] == "gain"
        error = 100 * (row["predicted"] - row["measured"]) / (1 if gain else row["measured"])
        span = f"{shown['low']} to {shown['high']}" if "low" in row else ""
        verdict = "fitted" if row["fitted"] else {True: "inside", False: "OUTSIDE", None: ""}[row.get("inside")]
        print(
            f"{row['of']:10}{row['what']:12}{row['sam']:13}{shown['measured']:>10}{shown['predicted']:>11}"
            f"{error:>+7.1f} {'pt' if gain else '% '}   {span:22}{verdict}"
        )
    if verdicts := [row["inside"] for row in result["rows"] if "inside" in row]:
        factors = [factor for run, factor in result["widened"].items() if run != "thresholds"]
        print(
            f"{sum(verdicts)} of {len(verdicts)} predictions have the measured value inside their range, which is "
            f"{min(factors):.2f} to {max(factors):.2f} times that of the worlds, as the other runs need it"
        )
    print("\ngain of the 32B's rollout by threshold, k = 3, predicted:")
    for row in result["thresholds"]:
        span = "{:.1f} to {:.1f} %".format(100 * row["low"], 100 * row["high"]) if "low" in row else ""
        print(f"  {STACKS[row['stack']]:44}{row['threshold']!s:>5}{100 * row['predicted']:>8.1f} %   {span}")
    if args.json:
        write_json(args.json, result)
    return 0
