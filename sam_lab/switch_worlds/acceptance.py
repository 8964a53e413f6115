# SPDX-License-Identifier: Apache-2.0
"""Scores of drafts, and how often drafts with these scores are accepted, from recordings.

acceptance.jsonl has drafts of nine sets of recorded answers: drafted by rule `blend` from the request alone, and from
its group too. `switch-worlds --derive` of commit 818da44 wrote it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TABLE = Path(__file__).with_name("acceptance.jsonl")
K = 8
"""Longest draft."""
RUNS, STEPS = 8, 32
"""Answers of a set, and consecutive drafts in each answer."""
BINS = 24
"""Number of bins of scores."""


@dataclass(frozen=True)
class Record:
    """Drafts of one set of recordings.

    scores: float32 [RUNS, STEPS, K], the pool's estimate that a draft is accepted up to each token; 0 after its end.
    truth: [RUNS, STEPS, K], the true probability of this acceptance, which depends only on the score.
    """

    name: str
    scores: npt.NDArray[np.float32]
    truth: npt.NDArray[np.float64]


def load() -> list[Record]:
    """The records of the table."""
    records = []
    for of_set in map(json.loads, TABLE.read_text().splitlines()):
        bytes_ = [[list(bytes.fromhex(draft)) for draft in run.split(",")] for run in of_set["runs"]]
        scores = np.zeros((len(bytes_), STEPS, K), np.float32)
        for i, run in enumerate(bytes_):
            for j, draft in enumerate(run):
                scores[i, j, : len(draft)] = np.array(draft) / 255
        truth = np.where(scores > 0, np.array(of_set["accepted"])[_bins(scores)], 0.0)
        records.append(Record(of_set["name"], scores, np.minimum.accumulate(truth, axis=2)))
    return records


def _bins(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.clip((scores * BINS).astype(np.int64), 0, BINS - 1)
