# SPDX-License-Identifier: Apache-2.0
"""Acceptance: tokens per step on the shipped answers to test prompts, geometric means and quartiles over the sets.

Private: drafts come only from the request, or from its group if there are groups. Shared: the pool, or the peer's
cache, holds all earlier requests. A peer's cache then has the finished answers to the same prompt in every context.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from sam_lab.bench import peers
from sam_lab.bench.rows import Figure, Row, bounded
from sam_lab.cli import LabError
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import DATA, Answer, Scope, make_scopes, read_answers, split, split_fold, temporary_corpus
from sam_lab.replay import replay
from sam_lab.workers import finished

SECTION = "acceptance"
SETS = {path.name.partition(".")[0]: path for path in sorted((DATA / "evidence").glob("*.jsonl.gz"))}
LIMIT = 200_000
"""Maximum replayed tokens per set."""
FOLDS = 4
EPOCHS = "rl"
"""The set with answers of earlier epochs."""
CHAINS = [(context, k) for context in ("request", "group", "sequential") for k in (3, 8)]
CORPUS = ("request", "group")


class Task(NamedTuple):
    """One configuration."""

    drafter: str
    context: str
    k: int
    folds: str = ""  # "without" or "with" a corpus of the other folds, over all folds
    private: bool = False  # see above


Bundle = tuple[list[Row], Callable[[list[Row]], None], list[Task]]


@functools.lru_cache(1)
def read(name: str) -> list[Answer]:
    return split(read_answers(SETS[name]))["test"]


@functools.lru_cache(1)
def drawn(name: str, context: str, limit: int) -> list[Scope]:
    return make_scopes(read(name), context, max_tokens=limit)


def run_task(name: str, task: Task, limit: int) -> dict[str, Any] | str:
    """Figures of a task on one set, or the reason why there are none."""
    try:
        if task.folds:
            return over_folds(task, read(name), limit)
        return replay(drafter(task), drawn(name, task.context, limit), task.context, task.k)
    except LabError as error:
        return str(error)
    except Exception as error:  # the other rows are measured
        return f"{type(error).__name__}: {error}"


def drafter(task: Task, **options: Any) -> Any:
    if task.drafter in peers.DRAFTERS:
        return peers.DRAFTERS[task.drafter](task.k, task.private)
    return SamDrafter(rule=task.drafter, private=task.private, **options)


def rivals(task: Task) -> list[Task]:
    """The peers; for shared drafts, only the peers that can share."""
    own = ("python", "ngram") if task.private and task.context == "request" else ()
    return [task._replace(drafter=name) for name in (*own, "arctic", "sglang")]


def over_folds(task: Task, answers: list[Answer], limit: int) -> dict[str, Any]:
    """Tokens per step over all folds, each with a corpus of the others if the task says so."""
    total: dict[str, Any] = dict.fromkeys(("steps", "tokens", "proposed"), 0)
    for number in range(FOLDS):
        mine, others = split_fold(answers, (number, FOLDS))
        if not mine or not others:
            continue
        scopes = make_scopes(mine, task.context, max_tokens=max(limit // FOLDS, 1))
        texts = (answer.response_ids for answer in others)
        with temporary_corpus(texts) if task.folds == "with" else contextlib.nullcontext() as corpus:
            figures = replay(drafter(task, corpus=corpus), scopes, task.context, task.k)
        total = {name: value + figures[name] for name, value in total.items()}
    return total


class AcceptanceBench:
    """All figures, {task: {set: figures}}, measured by one process per processor."""

    def __init__(self, quick: bool, progress: Callable[[str], None]):
        self.progress = progress
        self.limit = 2000 if quick else LIMIT
        self.figures: dict[Task, dict[str, Any]] = defaultdict(dict)
        self.errors: dict[Task, str] = {}

    def measure(self, tasks: Iterable[Task]) -> None:
        """Measure these tasks on all sets that have what they need."""
        tasks = sorted(set(tasks), key=lambda task: (task.context, str(task)))
        jobs = []
        for name in SETS:
            for task in tasks:
                if name == EPOCHS or task.context not in ("history", "nohistory"):
                    jobs.append((name, task, self.limit))
        for number, ((name, task, _), future) in enumerate(finished(run_task, jobs, os.cpu_count()), 1):
            try:
                figures = future.result()
            except BrokenProcessPool as error:  # killed, as where memory ends
                figures = f"a process that measured acceptance died: {error}"
            if isinstance(figures, str):
                self.errors[task] = figures
            else:
                self.figures[task][name] = figures
            self.progress(f"acceptance: {number} of {len(jobs)} configurations")

    def figure(self, task: Task) -> Figure:
        """Tokens per step: the geometric mean over the sets, and the quartiles of the sets; raises LabError if the task
        failed."""
        if task in self.errors:
            raise LabError(self.errors[task])
        return Figure.of_sets([f["tokens"] / f["steps"] for _, f in sorted(self.figures[task].items())])

    def rows(self) -> list[Bundle]:
        """Bundles of rows, each with the function that fills it after `measure` and the tasks that it needs."""
        bundles: list[Bundle] = []

        def add(what: str, task: Task, base: Task, *rivals: Task) -> None:
            fill = functools.partial(self.fill, task, base, rivals)
            bundles.append(([bounded(SECTION, what, "tokens per step")], fill, [task, base, *rivals]))

        for (context, k), private in itertools.product(CHAINS, (True, False)):
            task = Task("blend", context, k, private=private)
            what = f"chain k={k}, {context}, {'private' if private else 'shared'}"
            add(what, task, Task("newest", context, k), *rivals(task))
        add("chain k=8, with history", *(Task("blend", context, 8) for context in ("history", "nohistory")))
        for context in CORPUS:
            tasks = (Task("blend", context, 8, folds=folds) for folds in ("with", "without"))
            add(f"chain k=8, {context}, with corpus", *tasks)
        return bundles

    def fill(self, task: Task, base: Task, rivals: Sequence[Task], rows: list[Row]) -> None:
        """Fill in the figures of a task, its base and its peers."""
        (row,) = rows
        row.ours = self.figure(task)
        row.peers[label(base, task)] = self.figure(base)
        for rival in rivals:
            try:
                row.peers[rival.drafter] = self.figure(rival)
            except LabError as error:
                row.peers[rival.drafter] = str(error)


def label(base: Task, task: Task) -> str:
    """The name of a base in the rows of a task."""
    return base.drafter if base.drafter != task.drafter else "without"
