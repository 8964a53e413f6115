# SPDX-License-Identifier: Apache-2.0
"""Acceptance within a budget of memory: ours, that of private requests, and that of plans that know the answers.

A rollout is replayed with RUNNING requests at a time, in several orders of arrival. The pool's memory is a multiple of
what private requests need. The plans choose with hindsight which prompts share an index and which are private, by the
accepted tokens per byte of each prompt's index in a replay without a limit, and which sources are kept. The best plan
stands for what any policy could reach offline.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import sam_core
from sam_lab.bench.rows import Figure, Row, bounded
from sam_lab.bench.texts import SETS
from sam_lab.recordings import read_answers
from sam_lab.replay import accept_chain

if TYPE_CHECKING:
    from sam_core.options import Source

K = 8
RUNNING = 16
BUDGETS = (1.0, 1.5, 2.0)
"""Multiples of the peak memory of private requests without a limit."""
NAMES = ("math-cot-groups8", "rl-rollouts-qwen3b")
"""The sets with groups of short answers."""
GROUPS, ANSWERS, TOKENS = 24, 8, 800
"""Maximum groups of a set, answers of a group and tokens of an answer."""
SECTION = "within a budget of memory"
SHARES = (0.25, 0.5, 1.0)
"""Share of the prompts that have a shared index in each plan."""
ALL: tuple[Source, ...] = ("request", "group", "history", "common")
PRIVATE: tuple[Source, ...] = ("request", "common")


class Request(NamedTuple):
    prompt: str
    prompt_ids: np.ndarray
    answer: np.ndarray


class Result(NamedTuple):
    """Tokens per step; maximum bytes beyond those of an empty pool; accepted tokens by prompt."""

    tokens_per_step: float
    peak: int
    gained: dict[str, int]


def together(groups: Sequence[list[Request]], rng: random.Random) -> list[Request]:
    """Return the requests in an order in which the answers to a prompt run at the same time."""
    return [request for group in groups for request in group]


def in_turns(groups: Sequence[list[Request]], rng: random.Random) -> list[Request]:
    """Return the requests in epochs, each of which has every prompt once."""
    longest = max(map(len, groups))
    return [group[at] for at in range(longest) for group in groups if at < len(group)]


def mixed(groups: Sequence[list[Request]], rng: random.Random) -> list[Request]:
    """Return the requests in random order."""
    requests = together(groups, rng)
    rng.shuffle(requests)
    return requests


def skewed(groups: Sequence[list[Request]], rng: random.Random) -> list[Request]:
    """The requests in an order in which a few prompts are repeated often, among others that come once."""
    hot = max(1, len(groups) // 8)
    often = [request for group in groups[:hot] for request in group]
    once = [group[0] for group in groups[hot:]]
    rng.shuffle(often)
    every = max(1, len(once) // max(1, len(often)))
    order: list[Request] = []
    for at, request in enumerate(once):
        order += [often.pop()] if often and at % every == 0 else []
        order.append(request)
    return order + often


ORDERS = {"together": together, "in turns": in_turns, "mixed": mixed, "skewed": skewed}


def replay(
    requests: Iterable[Request], memory_bytes: int, shared: Callable[[str], bool], sources: Sequence[Source] = ALL
) -> Result:
    """Decode the answers greedily with drafts of at most K tokens; prompts that are not `shared` are private."""
    pool = sam_core.Pool(memory_bytes, sources=sources)
    empty = pool.stats()["bytes_used"]
    waiting = list(reversed(list(requests)))
    running: list[list[Any]] = []
    steps = tokens = peak = 0
    gained: dict[str, int] = defaultdict(int)
    while waiting or running:
        while waiting and len(running) < RUNNING:
            request = waiting.pop()
            slot = pool.open(request.prompt_ids, sam_core.BY_PROMPT if shared(request.prompt) else None)
            running.append([slot, request, 0, 1])
        slots = np.array([slot for slot, *_ in running], np.int32)
        counts = np.array([more for *_, more in running], np.int32)
        new = np.concatenate([request.answer[at : at + more] for _, request, at, more in running])
        out = np.zeros((len(running), K), np.int32)
        lengths = np.zeros(len(running), np.int32)
        pool.step(slots, new, counts, K, out, lengths)
        peak = max(peak, pool.stats()["bytes_used"])
        still = []
        for row, (slot, request, at, more) in enumerate(running):
            at += more
            accepted = accept_chain(out[row, : lengths[row]].tolist(), request.answer, at)
            steps += 1
            tokens += more
            gained[request.prompt] += accepted
            if at + accepted + 1 < len(request.answer):
                still.append([slot, request, at, accepted + 1])
            else:
                tokens += min(accepted + 1, len(request.answer) - at)
                pool.close(slot)
        running = still
    return Result(tokens / steps, peak - empty, gained)


def plans(requests: Sequence[Request], free: Result, private: Result, memory_bytes: int) -> Iterable[Result]:
    """Replays within the budget that know what each prompt's index is worth."""
    size: dict[str, int] = defaultdict(int)
    for request in requests:
        size[request.prompt] += len(request.answer)
    worth = sorted(size, key=lambda prompt: (private.gained[prompt] - free.gained[prompt]) / size[prompt])
    for share in SHARES:
        chosen = set(worth[: max(1, round(share * len(worth)))])
        for sources in (ALL, ("group", "common"), ("group", "history", "common")):
            if share < 1 and "request" not in sources:
                continue  # private requests would have no index
            yield replay(requests, memory_bytes, chosen.__contains__, sources)


def compare(groups: Sequence[list[Request]], order: str, budget: float, seed: int = 0) -> dict[str, float]:
    """Tokens per step without a limit, of ours, private requests and the best plan within a budget (see BUDGETS)."""
    requests = ORDERS[order](groups, random.Random(seed))
    unlimited = 8 << 30
    free = replay(requests, unlimited, lambda prompt: True)
    private_free = replay(requests, unlimited, lambda prompt: False, PRIVATE)
    memory = sam_core.Pool().stats()["bytes_used"] + int(budget * private_free.peak)
    ours = replay(requests, memory, lambda prompt: True)
    private = replay(requests, memory, lambda prompt: False, PRIVATE)
    best = max(plan.tokens_per_step for plan in plans(requests, free, private_free, memory))
    return {
        "free": free.tokens_per_step,
        "ours": ours.tokens_per_step,
        "private": private.tokens_per_step,
        "best": max(best, private.tokens_per_step, ours.tokens_per_step),
    }


def groups_of(name: str) -> list[list[Request]]:
    """Answers of a set by prompt, where there are several."""
    groups: dict[str, list[Request]] = defaultdict(list)
    for answer in read_answers(SETS[name]):
        prompt, tokens = (np.array(ids, np.int32) for ids in (answer.prompt_ids, answer.response_ids[:TOKENS]))
        if len(tokens) > 40:
            groups[str(answer.group)].append(Request(str(answer.group), prompt, tokens))
    return [group[:ANSWERS] for group in groups.values() if len(group) > 1][:GROUPS]


def rows(quick: bool, progress: Callable[[str], None]) -> list[tuple[list[Row], Callable[[list[Row]], None]]]:
    """The row of the benchmark and the function that measures it."""

    def measure(rows: list[Row]) -> None:
        (row,), shares = rows, []
        for name in NAMES[: 1 if quick else None]:
            groups = groups_of(name)
            for order in list(ORDERS)[: 1 if quick else None]:
                for budget in BUDGETS:
                    progress(f"{row.what}: {name}, {order}, {budget}")
                    result = compare(groups, order, budget)
                    shares.append(result["ours"] / result["best"])
        row.ours = Figure.of([min(shares)])
        row.note = f"minimum over {len(shares)} sets, orders and budgets; median {statistics.median(shares):.3f}"

    return [([bounded(SECTION, "within a budget, of the best plan", "of its tokens per step")], measure)]
