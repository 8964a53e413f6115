# SPDX-License-Identifier: Apache-2.0
"""The drafting methods, by name, and the trees that they draft.

chain       the article: a suffix automaton over prompt and answer, chains
sd-linear   SuffixDecoding: global tree and tree of the request, chains (SD-L)
sd-tree     the same, trees (SD-T)
rest        REST: trees retrieved from a datastore
ssd         a draft model's chains
tsd         a draft model's trees
gsd         a draft model's graphs: trees whose repeated parts are drafted once
hybrid      SAM's trees where it is sure of them, the draft model's graphs elsewhere
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.settings import Settings

METHODS = ("chain", "sd-linear", "sd-tree", "rest", "ssd", "tsd", "gsd", "hybrid")
WITH_MODEL = ("ssd", "tsd", "gsd", "hybrid")


def make(
    name: str, settings: Settings, earlier: Sequence[Sequence[int]], corpus: str | Path | None, draft_model: Any = None
) -> Any:
    """A new drafter.

    earlier: outputs of earlier requests, for the global tree; corpus: REST's datastore; draft_model: a transformers
    model. Each is used by the methods that need it.
    """
    from research import pool

    s = settings
    if name == "chain":
        return pool.Chains(s.k, rule="oldest", sources=("request",))
    if name in ("sd-linear", "sd-tree"):
        return (pool.Linear if name == "sd-linear" else pool.Global)(outputs=earlier)
    if name == "rest":
        from research.rest import Rest

        assert corpus is not None
        return Rest(corpus, s.n_max, s.m, s.c)
    from research.draft_model import DraftModel

    width, tau = {"ssd": (1, 0), "tsd": (s.width, 0)}.get(name, (s.width, s.tau))
    model = DraftModel(draft_model, width, s.depth, s.theta_prob, s.theta_sib, tau)
    if name != "hybrid":
        return model
    from research.hybrid import Hybrid

    return Hybrid(pool.Scored(outputs=earlier, rule="blend"), model, s.sure)
