# SPDX-License-Identifier: Apache-2.0
"""SAM drafts where it is sure, a draft model drafts elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from research.draft_model import DraftModel
from research.pool import Scored
from research.settings import Settings
from sam_lab.replay import Tree


class Hybrid:
    """The pool's tree where it expects as many accepted tokens as the draft model's drafts have on average.

    The pool's scores are calibrated while it drafts, so the sum of a tree's scores estimates how many of its tokens
    will be accepted. It must reach `sure` times the mean of what the draft model's drafts had accepted so far. The
    draft model is not run for such requests; it catches up with their text when it drafts for them next.

    Attributes:
        counts: those of the draft model, and sam: drafts taken from the pool.
    """

    def __init__(self, sam: Scored, model: DraftModel, sure: float = Settings.sure) -> None:
        self.sam, self.model, self.sure = sam, model, sure
        self.counts: Counter[str] = model.counts
        self.counts["sam"] = 0
        self._modelled: set[int] = set()
        self._drafts, self._accepted = 1, model.depth // 2  # of the draft model; the first guess makes it draft

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self.sam.start(request, prompt_ids, group)
        self.model.start(request, prompt_ids, group)

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        drafts = dict(zip(requests, self.sam.propose_scored(requests, n), strict=True))
        threshold = self.sure * self._accepted / self._drafts
        unsure = [request for request, (_, expected) in drafts.items() if expected < threshold]
        self._modelled = set(unsure)
        self.counts["sam"] += len(requests) - len(unsure)
        modelled = dict(zip(unsure, self.model.propose_tree_many(unsure, n) if unsure else (), strict=True))
        return [modelled.get(request, drafts[request][0]) for request in requests]

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            if request in self._modelled:
                self._drafts += 1
                self._accepted += len(row) - 1
        self.sam.append_many(requests, rows)
        self.model.append_many(requests, rows)

    def finish(self, request: int) -> None:
        self.sam.finish(request)
        self.model.finish(request)
