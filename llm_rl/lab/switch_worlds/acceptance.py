# SPDX-License-Identifier: Apache-2.0
"""What drafts promise and what they hold, from recordings.

acceptance.json is derived from the nine sets of recorded answers that docs/results.md names, by

    python -m llm_rl.lab switch-worlds --derive SET.jsonl.zst ...
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.replay import SamDrafter, make_scopes, read_answers, replay

TABLE = Path(__file__).with_name("acceptance.json")
K = 8
"""Longest draft."""
RUNS, STEPS = 8, 32
"""Answers of a set, and drafts that follow each other in each of them."""
BINS = 24
"""Of scores, in each of which it is known how many draft tokens were accepted."""


@dataclass(frozen=True)
class Record:
    """Drafts of one set of recordings.

    scores: float32 [RUNS, STEPS, K], what the pool promises of each draft, up to each token; 0 behind its end.
    truth: [RUNS, STEPS, K], the probability that it is accepted up to there, which depends on the score alone.
    """

    name: str
    scores: npt.NDArray[np.float32]
    truth: npt.NDArray[np.float64]


def load(path: Path = TABLE) -> list[Record]:
    """The records of a table that `derive` wrote."""
    records = []
    for name, of_set in json.loads(path.read_text())["sets"].items():
        bytes_ = [[list(bytes.fromhex(draft)) for draft in run.split(",")] for run in of_set["runs"]]
        scores = np.zeros((len(bytes_), STEPS, K), np.float32)
        for i, run in enumerate(bytes_):
            for j, draft in enumerate(run):
                scores[i, j, : len(draft)] = np.array(draft) / 255
        truth = np.where(scores > 0, np.array(of_set["accepted"])[_bins(scores)], 0.0)
        records.append(Record(name, scores, np.minimum.accumulate(truth, axis=2)))
    return records


def derive(paths: Sequence[Path], max_tokens: int = 60_000) -> dict[str, Any]:
    """The table of these recordings: drafted from the request alone, and from its group too."""
    sets = {}
    for path in paths:
        answers = read_answers(path)
        for context, sources in (("request", ["request"]), ("group", ["request", "group"])):
            drafter = _Noting(rule="blend", sources=sources, memory_bytes=1 << 30, min_prob=0.1)
            replay(drafter, make_scopes(answers, context, max_tokens=max_tokens), context, K)
            sets[f"{path.name.partition('.')[0]}, {context}"] = _summary(drafter)
    return {"sources": [path.name for path in paths], "sets": sets}


def _summary(drafter: _Noting) -> dict[str, Any]:
    scores = np.zeros((sum(map(len, drafter.drafts.values())), K))
    taken = []
    for i, (draft, accepted) in enumerate(d for drafts in drafter.drafts.values() for d in drafts):
        scores[i, : len(draft)] = draft
        taken.append(accepted)
    live = scores > 0
    bins = _bins(scores[live])
    # a bin without tokens of its own keeps its centre, with the weight of one token
    centre = (np.arange(BINS) + 0.5) / BINS
    accepted = (np.arange(K) < np.array(taken)[:, None])[live]
    share = (np.bincount(bins, accepted, BINS) + centre) / (np.bincount(bins, minlength=BINS) + 1)
    long = [drafts for drafts in drafter.drafts.values() if len(drafts) >= STEPS]
    short = [d for drafts in drafter.drafts.values() if len(drafts) < STEPS for d in drafts]
    short = short[: len(short) // STEPS * STEPS]
    runs = long + [short[i : i + STEPS] for i in range(0, len(short), STEPS)]
    rng = np.random.default_rng(0)
    chosen = [runs[i] for i in rng.permutation(len(runs))[:RUNS]]
    starts = [int(rng.integers(len(run) - STEPS + 1)) for run in chosen]
    return {
        "accepted": share.round(4).tolist(),
        "runs": [
            ",".join(
                bytes(np.maximum(1, np.round(draft * 255)).astype(np.uint8)).hex() for draft, _ in run[at:][:STEPS]
            )
            for run, at in zip(chosen, starts, strict=True)
        ],
    }


def _bins(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.clip((scores * BINS).astype(np.int64), 0, BINS - 1)


class _Noting(SamDrafter):
    """Notes the scores of each request's drafts and how much of each was accepted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.drafts: dict[int, list[tuple[npt.NDArray[np.float32], int]]] = defaultdict(list)
        self._last: dict[int, tuple[list[int], npt.NDArray[np.float32]]] = {}

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        slots, zeros, out, lengths, scores, _ = self._arrays(requests, k)
        self._pool.step(slots, self._nothing, zeros, k, out, lengths, scores)
        drafts = [row[:length] for row, length in zip(out.tolist(), lengths.tolist(), strict=True)]
        for request, draft, row in zip(requests, drafts, scores, strict=True):
            self._last[request] = draft, row[: len(draft)].copy()
        return drafts

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        super().append_many(requests, rows)
        for request, row in zip(requests, rows, strict=True):
            if request in self._last:
                draft, scores = self._last.pop(request)
                same = next((i for i, pair in enumerate(zip(draft, row, strict=False)) if pair[0] != pair[1]), None)
                self.drafts[request].append((scores, min(len(draft), len(row)) if same is None else same))
