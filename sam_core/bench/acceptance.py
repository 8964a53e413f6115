# SPDX-License-Identifier: Apache-2.0
"""Acceptance: tokens a step on recorded answers, each figure as a ratio within the run."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import peers
from rows import NotMeasured, Row
from sam_core.replay import geometric_mean
from texts import Texts

from sam_core import replay

SECTION = "acceptance"
FOLDS = 4
MIN_PROBS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
HISTORY = "rl-rollouts-qwen3b"
TARGETS = {
    "request": {3: 1.000, 4: 1.001, 8: 1.002, 16: 1.002},
    "group": {3: 1.006, 4: 1.008, 8: 1.010, 16: 1.009},
    "sequential": {8: 1.005},
}
TREES = {"request": {8: 1.07, 16: 1.145, 32: 1.19}, "group": {8: 1.09, 16: 1.18, 32: 1.24}}
OLD = {(3, False): 1.095, (8, False): 1.135, (16, False): 1.15, (16, True): 1.185}
CORPUS = {"request": 1.21, "group": 1.16}
SHORTER = 0.70
ARCTIC = {
    ("request", 8, False),
    ("group", 8, False),
    ("sequential", 8, False),
    ("request", 16, True),
    ("group", 16, True),
}
PEERS = {"arctic": peers.ArcticDrafter, "python": peers.PythonDrafter, "ngram": peers.NgramDrafter}


class Task(NamedTuple):
    """One configuration; min_prob is None where the rule's default stands."""

    drafter: str
    context: str
    k: int
    tree: bool = False
    min_prob: float | None = None
    folds: str = ""  # "without" or "with" a corpus of the other folds, over all folds


NEWEST = Task("newest", "request", 3)
SWEEP = [Task("blend", "request", 8, min_prob=p) for p in MIN_PROBS]


@functools.lru_cache(1)
def read(fixture: bool, name: str) -> list[replay.Answer]:
    return Texts(fixture).answers(name)


@functools.lru_cache(1)
def drawn(fixture: bool, name: str, context: str, limit: int) -> list[replay.Scope]:
    return replay.make_scopes(read(fixture, name), context, max_tokens=limit)


def run_task(fixture: bool, name: str, task: Task, limit: int) -> dict[str, Any] | str:
    """Figures of a task on one set, or why there are none."""
    try:
        if task.folds:
            return over_folds(task, read(fixture, name), limit)
        return replay.replay(drafter(task), drawn(fixture, name, task.context, limit), task.context, task.k, task.tree)
    except peers.NotAvailable as error:
        return f"not available: {error}"
    except Exception as error:  # the other rows are still wanted
        return f"{type(error).__name__}: {error}"


def drafter(task: Task, **options: Any) -> Any:
    if task.drafter in PEERS:
        return PEERS[task.drafter]()
    if task.min_prob is not None:
        options["min_prob"] = task.min_prob
    return replay.SamDrafter(rule=task.drafter, **options)


def over_folds(task: Task, answers: list[replay.Answer], limit: int) -> dict[str, Any]:
    """Tokens a step over all folds, each with a corpus of the others if the task says so."""
    total: dict[str, Any] = dict.fromkeys(("steps", "tokens", "proposed"), 0)
    for number in range(FOLDS):
        mine = [answer for answer in answers if replay.in_fold(answer, (number, FOLDS))]
        others = [answer.response_ids for answer in answers if not replay.in_fold(answer, (number, FOLDS))]
        if not mine or not others:
            continue
        scopes = replay.make_scopes(mine, task.context, max_tokens=max(limit // FOLDS, 1))
        with tempfile.TemporaryDirectory(prefix="sam-core-bench-") as folder:
            options = {"corpus": replay.build_corpus(others, folder)} if task.folds == "with" else {}
            figures = replay.replay(drafter(task, **options), scopes, task.context, task.k, task.tree)
        total = {name: value + figures[name] for name, value in total.items()}
    return total


class Acceptance:
    """All figures: {task: {set: figures}}, measured by one process a processor."""

    def __init__(self, texts: Texts, quick: bool, say: Callable[[str], None]):
        self.texts, self.say = texts, say
        self.limit = 2000 if quick else 0
        self.figures: dict[Task, dict[str, Any]] = defaultdict(dict)
        self.errors: dict[Task, str] = {}

    def measure(self, wanted: Iterable[Task]) -> None:
        """Measure these tasks on all sets that have what they need."""
        wanted = sorted(set(wanted), key=str)
        jobs = {}
        fresh = multiprocessing.get_context("spawn")  # numba's threads do not survive a fork
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=fresh) as pool:
            for name in sorted(self.texts.names, key=self.texts.limit):
                limit = self.limit or self.texts.limit(name)
                for task in wanted:
                    if name == HISTORY or task.context not in ("history", "nohistory"):
                        jobs[pool.submit(run_task, self.texts.is_fixture, name, task, limit)] = name, task
            for number, job in enumerate(concurrent.futures.as_completed(jobs), 1):
                name, task = jobs[job]
                figures = job.result()
                if isinstance(figures, str):
                    self.errors[task] = figures
                else:
                    self.figures[task][name] = figures
                self.say(f"acceptance: {number} of {len(jobs)} configurations")

    def ratio(self, task: Task, base: Task) -> tuple[float, dict[str, float]]:
        """Geometric mean and each set's ratio of tokens a step; raises NotMeasured with the reason where one failed."""
        for each in (task, base):
            if each in self.errors:
                raise NotMeasured(self.errors[each])
        mine, other = self.figures[task], self.figures[base]
        by_set = {n: mine[n]["tokens"] / mine[n]["steps"] / (other[n]["tokens"] / other[n]["steps"]) for n in mine}
        return geometric_mean([*by_set.values()]), by_set

    def rows(self) -> list[tuple[list[Row], Callable[[list[Row]], None], list[Task]]]:
        """Bundles of rows, the function that fills them after `measure`, and the tasks that it needs."""
        where = " (data of the benchmark, small)" if self.texts.is_fixture else ""

        def row(what: str, target: float, better: str = ">=") -> Row:
            return Row(SECTION + where, what, "ratio", better, target)

        bundles = []

        def add(rows: list[Row], task: Task, base: Task, *rivals: Task) -> None:
            fill = functools.partial(self.fill, task, base, rivals)
            bundles.append((rows, fill, [task, base, *rivals]))

        for context, by_k in TARGETS.items():
            for k, target in by_k.items():
                names = ["arctic"] if (context, k, False) in ARCTIC else []
                names += ["python", "ngram"] if (context, k) == ("request", 8) else []
                task, base, *rivals = (Task(name, context, k) for name in ("blend", "count", *names))
                add([row(f"chain k={k}, {context}, to count", target)], task, base, *rivals)
        for context, by_n in TREES.items():
            for n, target in by_n.items():
                rivals = [Task("arctic", context, n, True)] if (context, n, True) in ARCTIC else []
                task, base = Task("blend", context, n, True), Task("count", context, 8)
                add([row(f"tree n={n}, {context}, to count k=8", target)], task, base, *rivals)
        for (k, tree), target in OLD.items():
            task, base = (Task("blend", context, k, tree) for context in ("history", "nohistory"))
            add([row(f"history {'tree n' if tree else 'k'}={k}, to none", target)], task, base)
        for context, target in CORPUS.items():
            task, base = (Task("blend", context, 8, folds=folds) for folds in ("with", "without"))
            pair = [row(f"corpus k=8, {context}, to none", target), row(f"corpus k=8, {context}, worst set", 1.0)]
            add(pair, task, base)
        bundles.append(([row("drafted tokens, newest k=3 = 1", SHORTER, "<=")], self.fill_shorter, [NEWEST, *SWEEP]))
        return bundles

    def fill(self, task: Task, base: Task, rivals: Sequence[Task], rows: list[Row]) -> None:
        """The ratio of a task to its base, that of the worst set where a second row asks for it, and those of peers."""
        rows[0].ours, by_set = self.ratio(task, base)
        rows[0].note = f"tokens a step {self.means(task)[0]:.3f}, {self.means(base)[0]:.3f}"
        for worst in rows[1:]:
            name = min(by_set, key=by_set.__getitem__)
            worst.ours, worst.note = by_set[name], name
        for rival in rivals:
            try:
                rows[0].peers[rival.drafter] = self.ratio(rival, base)[0]
            except NotMeasured as error:
                rows[0].peers[rival.drafter] = str(error)

    def curve(self) -> list[tuple[float, float]]:
        """(tokens a step, drafted tokens a step) of blend for each of MIN_PROBS: geometric means over the sets."""
        return [self.means(task) for task in SWEEP]

    def means(self, task: Task) -> tuple[float, float]:
        """Geometric means over the sets: tokens and drafted tokens a step; raises NotMeasured as `ratio` does."""
        if task in self.errors:
            raise NotMeasured(self.errors[task])
        figures = self.figures[task].values()
        if not figures:
            raise NotMeasured("not asked for")
        steps = [f["steps"] for f in figures]
        tokens = geometric_mean([f["tokens"] / n for f, n in zip(figures, steps)])
        return tokens, geometric_mean([f["proposed"] / n for f, n in zip(figures, steps)])

    def fill_shorter(self, rows: list[Row]) -> None:
        tokens, drafted = self.means(NEWEST)
        needed = drafted_for(self.curve(), tokens)
        rows[0].ours = needed / drafted
        rows[0].note = f"at {tokens:.3f} tokens a step: {needed:.2f} instead of {drafted:.2f} drafted a step"


def drafted_for(curve: list[tuple[float, float]], tokens: float) -> float:
    """Drafted tokens a step at which a curve of (tokens, drafted) has `tokens` a step, linear between its points.

    Raises NotMeasured where the curve does not get there.
    """
    points = sorted(curve)
    for (low, few), (high, many) in zip(points, points[1:]):
        if low <= tokens <= high:
            return few + (many - few) * (tokens - low) / (high - low) if high > low else min(few, many)
    raise NotMeasured(
        f"no min_prob gives {tokens:.3f} tokens a step: they go from {points[0][0]:.3f} to {points[-1][0]:.3f}"
    )
