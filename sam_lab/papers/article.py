# SPDX-License-Identifier: Apache-2.0
"""Experiments of the article on recordings: acceptance by position and length, and the tail of a batch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import numpy as np

from sam_lab.methods.pool import SamDrafter
from sam_lab.papers import Limits, Row, experiment, measured
from sam_lab.papers.replayed import Recording
from sam_lab.recordings import MAX_RESPONSES, make_scopes
from sam_lab.replay import BINS, Counts, replay

BATCH, THRESHOLD = 64, 8
ANSWER_LENGTHS = {"0-512": 512, "512-1k": 1024, "1-2k": 2048, "2-4k": 4096, "4-8k": 8192, "8k+": 1 << 30}
ARTICLE = {"rule": "oldest", "sources": ("request",)}
OURS = {"rule": "blend", "sources": ("request", "group", "history")}


@experiment(
    "positions",
    "The article: acceptance by position in the answer",
    "Tokens a step. Article: rule oldest, source request, k = 3. Bins of 200 steps or more; ratio: to the first one.",
)
def positions(recording: Recording, limits: Limits) -> list[Row]:
    """Each configuration has a fresh drafter."""
    columns: dict[str, dict[str, Counts]] = {}
    for name, options, context, k in (
        ("article", ARTICLE, "request", 3),
        ("blend, request, k = 3", OURS, "request", 3),
        ("blend, group, k = 3", OURS, "group", 3),
        ("blend, group, k = 8", OURS, "group", 8),
    ):
        scopes = make_scopes(recording.answers, context, MAX_RESPONSES, 2 * limits.max_tokens, limits.seed)
        every: Counts = {}
        by_bin: dict[str, Counts] = {}
        figures = replay(SamDrafter(**options), scopes, context, k, by_prompt=every, by_bin=by_bin)
        none = dict.fromkeys(every, [0, 0, 0, 0])
        columns[name] = {place: none | by_bin[place] for place in figures["bins"]} | {"all": every}
    rows = []
    for place in (*BINS, "all"):
        row: Row = {"position": place}
        for name, counts in columns.items():
            if place in counts:
                row |= measured(name, counts[place])
                if place not in ("all", first := next(iter(counts))):
                    row |= measured(f"{name} / {first}", counts[place], counts[first])
        if len(row) > 1:
            rows.append(row)
    return rows


@experiment(
    "lengths",
    "The article: acceptance by length of the answer",
    "Tokens a step, k = 3, source request. Classes of 3 answers or more.",
)
def lengths(recording: Recording, limits: Limits) -> list[Row]:
    scopes = make_scopes(recording.answers, "request", MAX_RESPONSES, 2 * limits.max_tokens, limits.seed)
    rows, shorter = [], 0
    for name, longest in ANSWER_LENGTHS.items():
        every = (one for scope in scopes for one in scope)
        of_class = [[one] for one in every if shorter <= len(one[0].response_ids) < longest]
        shorter = longest
        if len(of_class) < 3:
            continue
        row: Row = {"tokens of the answer": name, "answers": len(of_class)}
        for column, options in (("article", ARTICLE), ("blend, request, k = 3", OURS)):
            row[column] = replay(SamDrafter(**options), of_class, "request", 3)["tokens_per_step"]
        rows.append(row)
    return rows


class Tail:
    """Drafts while at most `threshold` requests run, as the article's switch has it, and counts the batch's steps.

    Requests of one prompt are a group, whatever the replay calls one.
    """

    def __init__(self, drafter: SamDrafter, threshold: int) -> None:
        self.drafter, self.threshold, self.steps, self.tail = drafter, threshold, 0, 0
        self.append_many, self.finish = drafter.append_many, drafter.finish

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self.drafter.start(request, prompt_ids, hashlib.sha1(np.array(prompt_ids, np.int32)).hexdigest())

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        self.steps += 1
        if len(requests) > self.threshold:
            return [[] for _ in requests]
        self.tail += 1
        return self.drafter.propose_many(requests, k)


@experiment(
    "tails",
    "The article: the tail of a batch",
    "64 answers start together; drafts are made while at most 8 run. Steps of the whole batch, and steps without "
    "drafts by steps with them, of all and in the tail. 95 %: bootstrap over batches.",
)
def tails(recording: Recording, limits: Limits) -> list[Row]:
    order = random.Random(limits.seed)
    groups = make_scopes(recording.answers, "group", 1 << 30, 1 << 30, limits.seed)
    answers = [answer for scope in groups for answer, _ in scope]
    size = min(BATCH, len(answers))
    batches = [answers[at : at + size] for at in range(0, len(answers) - size + 1, size)]
    order.shuffle(batches)
    sums: dict[str, Counts] = {"article, k = 3": {}, "blend, k = 3": {}}
    done = 0
    for batch in batches:
        if done >= 4 * limits.max_tokens:
            break
        done += sum(len(answer.response_ids) for answer in batch)
        ends = sorted((len(answer.response_ids) for answer in batch), reverse=True)
        before = ends[THRESHOLD] if len(ends) > THRESHOLD else 0
        for (name, counts), options in zip(sums.items(), (ARTICLE, OURS), strict=True):
            drafter = Tail(SamDrafter(**options), THRESHOLD)
            replay(drafter, [[(answer, True) for answer in batch]], "group", 3)
            counts[str(len(counts))] = [ends[0], drafter.steps, ends[0] - before, drafter.tail]
    plain, _, plain_tail, _ = (sum(column) for column in zip(*counts.values(), strict=True))
    row: Row = {"batches": len(counts), "steps without": plain, "of them in the tail": plain_tail}
    for name, counts in sums.items():
        row |= measured(f"{name}: all", counts, parts=(0, 1)) | measured(f"{name}: tail", counts, parts=(2, 3))
    return [row]


EXPERIMENTS = (positions, lengths, tails)
