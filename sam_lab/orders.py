# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab routing --recording`: makespan of a rollout, by what is known of the lengths before it begins."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.files import write_json

from llm_rl import config, layout
from sam_lab.cli import LabError
from sam_lab.plan.acceptance import Acceptance, recorded
from sam_lab.plan.cost import DEVICES, Cost, roofline
from sam_lab.plan.lengths import Int64
from sam_lab.plan.simulate import EDGES, Policy
from sam_lab.plan.step import Setup, deal, loaded, setup
from sam_lab.recordings import DATA, parse_answer, read_answers, read_records
from sam_lab.replay import bootstrap

PROMPT_TOKENS = 133
KEPT = 0.6
"""Share of the prompts that serve to train, as of the planner."""
LONG = 8192
"""Tokens from which an answer counts as long, for the budget."""
TABLE = "{:32}{:>8}{:>9}{:>16}{:>11}{:>9}{:>16}"
CELLS: tuple[Callable[..., str], ...] = (
    lambda seconds, *_: f"{seconds:,.0f}",
    lambda _, ratio, *__: f"{ratio:.3f}",
    lambda _, __, low=None, high=None: "-" if low is None else f"{low:.3f} - {high:.3f}",
)


@dataclass(frozen=True)
class Batch:
    """A round's prompts. answers: [prompts, n] lengths; mean, longest: [prompts], of what was answered earlier."""

    answers: Int64
    mean: np.ndarray
    longest: np.ndarray

    @property
    def indices(self) -> Int64:
        """Of the answers, by prompt."""
        return np.arange(self.answers.size).reshape(self.answers.shape)


Way = Callable[[Setup, Batch], list[Int64]]
"""Answers of each rank in the order in which they are sent, as indices into `answers` of the batch."""


def _first(key: Callable[[Batch], Any], routing: str) -> Way:
    """Prompts are sent in the order of a key, the largest first."""
    return lambda plan, batch: deal(batch.indices[np.argsort(-key(batch), kind="stable")], plan.ranks, routing)


def _idlest(plan: Setup, batch: Batch) -> list[Int64]:
    """A prompt's answers go where the earlier lengths say that there are fewest tokens."""
    dealt: list[list[int]] = [[] for _ in range(plan.ranks)]
    expected = np.zeros(plan.ranks)
    for indices, mean in zip(batch.indices.tolist(), batch.mean, strict=True):
        rank = int(expected.argmin())
        dealt[rank] += indices
        expected[rank] += mean * len(indices)
    return [np.array(of_rank, np.int64) for of_rank in dealt]


WAYS: dict[str, Way] = {
    "spread": lambda plan, batch: deal(batch.indices, plan.ranks, "spread"),
    "spread, longest mean first": _first(lambda batch: batch.mean, "spread"),
    "spread, longest answer first": _first(lambda batch: batch.longest, "spread"),
    "spread, prompts foreseen": _first(lambda batch: batch.answers.max(axis=1), "spread"),
    "spread, answers foreseen": lambda plan, batch: deal(
        np.argsort(-batch.answers, None)[:, None], plan.ranks, "spread"
    ),
    "sticky": lambda plan, batch: deal(batch.indices, plan.ranks, "sticky"),
    "sticky, longest mean first": _first(lambda batch: batch.mean, "sticky"),
    "sticky, fewest expected tokens": _idlest,
    "sticky, prompts foreseen": _first(lambda batch: batch.answers.max(axis=1), "sticky"),
}
"""The first is how verl sends. Foreseen: by the lengths of the answers themselves, which nobody knows."""


def run(args: argparse.Namespace) -> int:
    """The simulation; raises LabError, ValueError or OSError."""
    plan, cost, mean = read_recipe(args.recipe, args.set or [])
    pairs, epochs = read_lengths(args.recording, args.halves, args.seed)
    batches = [draw(pairs, plan, mean, np.random.default_rng([args.seed, number])) for number in range(args.draws)]
    policies = budgets(plan, cost, batches[0])
    off, progress = Policy.off(plan.slots), Progress()
    ends: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number, batch in enumerate(batches, 1):
        progress.show(f"batch {number} of {len(batches)}")
        for name, way in WAYS.items():
            ends[name].append(ended(plan, batch, way, cost, off))
        for name, policy in policies.items():
            ends[name].append(ended(plan, batch, WAYS["spread"], cost, policy))
    progress.clear()
    known = "of earlier epochs" if epochs else "of half of each group"
    longest = float(np.mean([batch.answers.max() for batch in batches]) * cost.rows_cost(1))
    print(
        f"{plan.name}: {plan.ranks} engines, {plan.gen_prompts} x {plan.n} answers, {len(pairs):,} prompts; known: answers"
    )
    print(f"{known}; the longest answer alone takes {longest:,.0f} s; {enough(plan)} prompts suffice for a step\n")
    print(TABLE.format("way", "all, s", "of base", "95 % interval", "enough, s", "of base", "95 % interval"))
    rows = []
    for name, base in [(way, "spread") for way in WAYS] + [(policy, "auto") for policy in policies]:
        row: dict[str, Any] = {"way": name, "base": base}
        for what, mine, others in zip(("all", "enough"), zip(*ends[name]), zip(*ends[base]), strict=True):
            row[what] = [round(value, 4) for value in (float(np.mean(mine)), *compare(mine, others, args.seed))]
        rows.append(row)
        cells = (f(*row[what]) for what in ("all", "enough") for f in CELLS)
        print(TABLE.format(name, *cells), flush=True)
    if args.out:
        facts = {"recording": args.recording.name, "epochs": epochs, "prompts": len(pairs), "recipe": plan.name}
        write_json(
            args.out,
            facts | {"correlation": correlation(pairs), "longest": round(longest), "draws": args.draws, "rows": rows},
        )
    return 0


def read_recipe(path: Path, overrides: Sequence[str]) -> tuple[Setup, Cost, float]:
    """A recipe's rollout, the cost of its steps on a 910C, and the mean length of its answers; raises LabError."""
    recipe = config.load(path, list(overrides))
    shape = layout.shape(Path(recipe.model.path))
    if shape is None or recipe.rollout.expected_length is None:
        raise LabError(f"{path} does not say a known model and rollout.expected_length: take one of 910C")
    plan = setup(recipe, shape, recipe.options.threshold, recipe.sam_options["k"], KEPT)
    plan = replace(plan, prompt_tokens=PROMPT_TOKENS)
    cost = roofline(shape, plan.tensor, plan.expert, DEVICES["910C"], plan.eager)
    return plan, cost, recipe.rollout.expected_length - PROMPT_TOKENS


def read_lengths(path: Path, halves: bool, seed: int) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Of each prompt the lengths of earlier answers and of later ones; and whether they are of different epochs.

    Without epochs, or with `halves`, each group is halved at random: earlier answers of the same model, the most that
    can be known.
    """
    groups: dict[tuple[str, float], list[int]] = defaultdict(list)
    for where, record in read_records(path):
        # answers that end in a loop count as well: they are often the longest
        if answer := parse_answer(record | {"tail_rep": None}, where):
            alone = halves or answer.epoch is None
            groups[answer.group if alone else answer.prompt_id, 0 if alone else answer.epoch].append(
                len(answer.response_ids)
            )
    by_prompt: dict[str, list[list[int]]] = defaultdict(list)
    for (name, _), lengths in sorted(groups.items()):
        by_prompt[name].append(lengths)
    pairs = [(sum(before, []), last) for *before, last in by_prompt.values() if before]
    if pairs:
        return pairs, True
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(lengths).tolist() for [lengths] in by_prompt.values() if len(lengths) > 1]
    if not shuffled:
        raise LabError("the recording has no prompt with several answers")
    return [(lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]) for lengths in shuffled], False


def draw(pairs: Sequence[tuple[list[int], list[int]]], plan: Setup, mean: float, rng: np.random.Generator) -> Batch:
    """A round of random prompts. Lengths are scaled to the recipe's mean; a prompt's answers are drawn with replacement."""
    scale = mean / np.mean([length for _, now in pairs for length in now])
    chosen = [pairs[i] for i in rng.choice(len(pairs), plan.gen_prompts, replace=len(pairs) < plan.gen_prompts)]
    lengths = scale * np.array([rng.choice(now, plan.n) for _, now in chosen])
    earlier = [before for before, _ in chosen]
    return Batch(
        np.clip(np.rint(lengths), 1, plan.limit).astype(np.int64),
        scale * np.array([np.mean(before) for before in earlier]),
        scale * np.array([max(before) for before in earlier]),
    )


def budgets(plan: Setup, cost: Cost, batch: Batch) -> dict[str, Policy]:
    """Switch `auto`, which weighs tokens a second, and the same with drafts for every long answer in every step."""
    answers = read_answers(DATA / "reason-long-groups.jsonl.gz")
    acceptance: Acceptance = recorded(answers, "group", {"sources": ["request", "group"]})
    held = np.full(plan.slots + 1, (plan.prompt_tokens + batch.answers.mean() / 2) / 1000)
    auto = acceptance.auto(plan.slots, cost, held)
    long = np.flatnonzero(np.append(EDGES, EDGES[-1] + 1) > LONG)
    favoured = Policy(auto.gain.copy(), auto.drafted.copy())
    k = acceptance.ks.index(plan.k)
    for table, own in ((favoured.gain, acceptance.gain), (favoured.drafted, acceptance.drafted)):
        table[1:, long] = np.maximum(table[1:, long], own[k, long])
    return {"auto": auto, "auto, and all long answers": favoured}


def enough(plan: Setup) -> int:
    """Prompts that must end before a step that trains on the first ones is full."""
    return min(plan.gen_prompts, int(np.ceil(plan.train_prompts / KEPT)))


def ended(plan: Setup, batch: Batch, way: Way, cost: Cost, policy: Policy) -> tuple[float, float]:
    """Seconds until all prompts, and until enough of them, have ended."""
    dealt = way(plan, batch)
    at = np.zeros(batch.answers.size)
    for number, engine in enumerate(loaded(plan, [batch.answers.ravel()[indices] for indices in dealt])):
        for (rank, request), second in engine.run(cost, policy).ended.items():
            at[dealt[number * plan.data + rank][request]] = second
    of_prompts = np.sort(at.reshape(batch.answers.shape).max(axis=1))
    return float(of_prompts[-1]), float(of_prompts[enough(plan) - 1])


def compare(mine: Sequence[float], others: Sequence[float], seed: int) -> list[float]:
    """Ratio of the mean makespans, and with two batches or more the ends of its 95 % interval, by resampling batches."""
    a, b = np.array(mine), np.array(others)
    interval = bootstrap(lambda drawn: a[drawn].mean(1) / b[drawn].mean(1), len(a), seed)
    return [float(a.mean() / b.mean()), *(interval or ())]


def correlation(pairs: Sequence[tuple[list[int], list[int]]]) -> float:
    """Of the logarithms of a prompt's mean lengths, earlier and now."""
    logs = [[np.log(np.mean(lengths)) for lengths in pair] for pair in pairs]
    return round(float(np.corrcoef(np.array(logs).T)[0, 1]), 3)
