# SPDX-License-Identifier: Apache-2.0
"""One DAPO step: distribute the answers over engines, generate in rounds, train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sam_core.engines.routing import PromptRoutes

from llm_rl import layout
from llm_rl.layout import GIB
from llm_rl.recipe import Recipe
from llm_rl.shape import Shape
from sam_lab.cost import Cost
from sam_lab.plan.simulate import Engines, Policy, Trace

SWITCHING = 40.0
"""Seconds per round for exchanging weights: an assumption, about the time that the article's rollouts leave for it."""
TRAINING = 1.04e-13
"""Die seconds of training per token and active parameter, fitted to the article (docs/results/plan-article.json)."""
SPREAD = 0.6
"""Standard deviation of the logarithm of the answers' lengths; also fitted."""
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setup:
    """A recipe's rollout.

    data: ranks of an engine that run each step together, as experts are spread over them; 1: engines are independent.
    gen_prompts: prompts per round; rounds: rounds of generation per step. capacity: tokens of keys and values that a
    rank holds, if it holds nothing else. training: die seconds per trained token and active parameter.
    """

    name: str
    shape: Shape
    dies: int
    tensor: int
    data: int
    expert: int
    train_prompts: int
    gen_prompts: int
    n: int
    slots: int
    limit: int
    capacity: float
    threshold: int = 8
    k: int = 3
    rounds: int = 1
    prompt_tokens: int = 133
    eager: bool = True
    training: float = TRAINING
    unit: str = "die"

    @property
    def ranks(self) -> int:
        return self.dies // self.tensor

    def states(self, k: int) -> float:
        """Tokens whose keys and values take as much memory as a request's states with drafts of k tokens."""
        return self.shape.state_bytes(self.tensor, k) / self.shape.kv_bytes(self.tensor)


def setup(recipe: Recipe, shape: Shape, threshold: int, k: int, kept: float) -> Setup:
    """The setup of a recipe. kept: share of the groups that dynamic sampling keeps.

    Raises ValueError if the recipe does not fit its dies, or lacks a value.
    """
    if recipe.cluster.die_memory is None:
        raise ValueError(f"{recipe.name} does not say cluster.die_memory: set it as key=value")
    tensor = recipe.rollout.tensor_model_parallel_size
    memory = layout.rollout(recipe, shape)
    if memory.kv < memory.sequence:
        raise ValueError(
            f"{recipe.name} does not fit: a {recipe.cluster.unit} has {memory.kv:.1f} GiB left for keys and values, "
            f"and one full sequence takes {memory.sequence:.1f}"
        )
    expert = recipe.rollout.expert_parallel_size
    return Setup(
        name=recipe.name,
        shape=shape,
        dies=recipe.cluster.dies,
        unit=recipe.cluster.unit,
        tensor=tensor,
        data=recipe.rollout.data_parallel_size if expert > 1 else 1,
        expert=expert,
        train_prompts=recipe.data.train_batch_size,
        gen_prompts=recipe.data.gen_batch_size,
        n=recipe.rollout.n,
        slots=recipe.rollout.max_num_seqs,
        limit=recipe.data.max_response_length,
        capacity=memory.kv * GIB / shape.kv_bytes(tensor),
        threshold=threshold,
        k=k,
        rounds=-(-recipe.data.train_batch_size // max(1, int(recipe.data.gen_batch_size * kept))),
        eager=recipe.rollout.enforce_eager,
    )


def deal(lengths: Int64, ranks: int) -> list[Int64]:
    """Distribute the answers of a round, lengths [prompts, n], over ranks; all are requested at once.

    sam_core.engines.routing keeps the answers to a prompt together.
    """
    routes = PromptRoutes()
    given: list[list[int]] = [[] for _ in range(ranks)]
    in_flight = dict.fromkeys(range(ranks), 0)
    for prompt, group in enumerate(lengths.tolist()):
        for i, length in enumerate(group):
            rank = routes.choose(f"{prompt}-{i}", [prompt], in_flight)
            in_flight[rank] += 1
            given[rank].append(length)
    return [np.array(of_rank, np.int64) for of_rank in given]


def engines(plan: Setup, lengths: Int64, k: int = 0) -> list[Engines]:
    """The engines of a round, with their requests and room for drafts of k tokens."""
    dealt = deal(lengths, plan.ranks)
    groups = [dealt[i : i + plan.data] for i in range(0, plan.ranks, plan.data)]
    prompts = [[np.full(len(answers), plan.prompt_tokens) for answers in group] for group in groups]
    return [
        Engines(p, group, plan.slots, plan.capacity, states=plan.states(k))
        for p, group in zip(prompts, groups, strict=True)
    ]


@dataclass(frozen=True)
class Round:
    """Seconds of a round: the mean over ranks, the slowest rank, and the tail."""

    mean: float
    longest: float
    tail: float
    traces: tuple[Trace, ...]

    @staticmethod
    def of(traces: Sequence[Trace], threshold: int) -> Round:
        """The round of the engines' traces; ranks that run each step together end together."""
        totals, tails = [t.total for t in traces], [t.tail(threshold) for t in traces]
        return Round(float(np.mean(totals)), max(totals), float(np.mean(tails)), tuple(traces))


@dataclass(frozen=True)
class Tails:
    """A round's engines, to be continued under one policy after another.

    They ran without drafts until at most `max_running` requests ran on each rank.
    """

    plan: Setup
    cost: Cost
    waiting: tuple[Engines, ...]
    max_running: int

    @staticmethod
    def of(plan: Setup, cost: Cost, loaded: Sequence[Engines], max_running: int) -> Tails:
        for engine in loaded:
            engine.run(cost, Policy.off(plan.slots), until=max_running)
        return Tails(plan, cost, tuple(loaded), max_running)

    def run(self, policy: Policy, threshold: int) -> Round:
        """Continue with a policy that drafts only while at most `max_running` requests run. threshold: the tail's."""
        if policy.gain[self.max_running + 1 :].any():
            raise ValueError(f"the policy drafts beyond {self.max_running} running requests, where this round did not")
        return Round.of([engine.copy().run(self.cost, policy) for engine in self.waiting], threshold)
