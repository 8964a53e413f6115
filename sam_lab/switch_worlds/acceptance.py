# SPDX-License-Identifier: Apache-2.0
"""Scores of drafts and how often drafts of that score are accepted, from recordings.

acceptance.jsonl is derived from the nine sets of recorded answers that docs/results.md names, by

    python -m sam_lab switch-worlds --derive SET.jsonl.zst ...
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_lab.cli import LabError
from sam_lab.methods.pool import Watched
from sam_lab.recordings import make_scopes, read_answers
from sam_lab.replay import replay

TABLE = Path(__file__).with_name("acceptance.jsonl")
K = 8
"""Longest draft."""
RUNS, STEPS = 8, 32
"""Answers of a set, and drafts that follow each other in each of them."""
BINS = 24
"""Of scores."""


@dataclass(frozen=True)
class Record:
    """Drafts of one set of recordings.

    scores: float32 [RUNS, STEPS, K], the pool's estimate that a draft is accepted up to each token; 0 behind its end.
    truth: [RUNS, STEPS, K], the true probability of that, which depends on the score alone.
    """

    name: str
    scores: npt.NDArray[np.float32]
    truth: npt.NDArray[np.float64]


def load(path: Path = TABLE) -> list[Record]:
    """The records of a table that `derive` wrote."""
    records = []
    for of_set in map(json.loads, path.read_text().splitlines()):
        bytes_ = [[list(bytes.fromhex(draft)) for draft in run.split(",")] for run in of_set["runs"]]
        scores = np.zeros((len(bytes_), STEPS, K), np.float32)
        for i, run in enumerate(bytes_):
            for j, draft in enumerate(run):
                scores[i, j, : len(draft)] = np.array(draft) / 255
        truth = np.where(scores > 0, np.array(of_set["accepted"])[_bins(scores)], 0.0)
        records.append(Record(of_set["name"], scores, np.minimum.accumulate(truth, axis=2)))
    return records


def derive(paths: Sequence[Path], max_tokens: int = 60_000) -> Iterator[dict[str, Any]]:
    """The lines of the table of these recordings: drafted from the request alone, and from its group too.

    Raises LabError for a recording without RUNS runs of drafts, or of which no draft is accepted.
    """
    for path in paths:
        answers = read_answers(path)
        for context, sources in (("request", ["request"]), ("group", ["request", "group"])):
            drafter = Watched(rule="blend", sources=sources, memory_bytes=1 << 30, min_prob=0.1)
            replay(drafter, make_scopes(answers, context, max_tokens=max_tokens), context, K)
            summary = _summary(drafter)
            if len(summary["runs"]) < RUNS:
                found = f"{len(summary['runs'])} runs of {STEPS} drafts"
                raise LabError(f"{path} gives {found} in context {context}, {RUNS} are needed: take a larger recording")
            if not any(draft.accepted for draft in drafter.drafts):
                raise LabError(f"{path}: no drafted token is accepted in context {context}")
            yield {"name": f"{path.name.partition('.')[0]}, {context}", "source": path.name} | summary


def _summary(drafter: Watched) -> dict[str, Any]:
    by_request: dict[int, list[npt.NDArray[np.float32]]] = defaultdict(list)
    for draft in drafter.drafts:
        by_request[draft.request].append(draft.scores)
    scores, taken = drafter.scores(K), [draft.accepted for draft in drafter.drafts]
    live = scores > 0
    bins = _bins(scores[live])
    # a bin without tokens of its own keeps its centre, with the weight of one token
    centre = (np.arange(BINS) + 0.5) / BINS
    accepted = (np.arange(K) < np.array(taken)[:, None])[live]
    share = (np.bincount(bins, accepted, BINS) + centre) / (np.bincount(bins, minlength=BINS) + 1)
    long = [drafts for drafts in by_request.values() if len(drafts) >= STEPS]
    short = [d for drafts in by_request.values() if len(drafts) < STEPS for d in drafts]
    short = short[: len(short) // STEPS * STEPS]
    runs = long + [short[i : i + STEPS] for i in range(0, len(short), STEPS)]
    rng = np.random.default_rng(0)
    chosen = [runs[i] for i in rng.permutation(len(runs))[:RUNS]]
    starts = [int(rng.integers(len(run) - STEPS + 1)) for run in chosen]
    return {
        "accepted": share.round(4).tolist(),
        "runs": [
            ",".join(bytes(np.maximum(1, np.round(draft * 255)).astype(np.uint8)).hex() for draft in run[at:][:STEPS])
            for run, at in zip(chosen, starts, strict=True)
        ],
    }


def _bins(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.clip((scores * BINS).astype(np.int64), 0, BINS - 1)
