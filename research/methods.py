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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METHODS = ("chain", "sd-linear", "sd-tree", "rest", "ssd", "tsd", "gsd", "hybrid")
WITH_MODEL = ("ssd", "tsd", "gsd", "hybrid")


@dataclass(frozen=True)
class Settings:
    """Options of the methods; the defaults are the papers', but `sure`: at 1 the automaton drafted in 3 % of the steps.

    k: tokens of a chain; n_max, m, c: REST's; width, depth, theta_prob, theta_sib,
    tau: the draft model's; sure: the hybrid's threshold.
    """

    k: int = 8
    n_max: int = 16
    m: int = 10
    c: int = 64
    width: int = 4
    depth: int = 10
    theta_prob: float = 0.2
    theta_sib: float = 0.3
    tau: int = 2
    sure: float = 0.3


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

        return Rest(corpus, s.n_max, s.m, s.c)
    from research.draft_model import DraftModel

    width, tau = {"ssd": (1, 0), "tsd": (s.width, 0)}.get(name, (s.width, s.tau))
    model = DraftModel(draft_model, width, s.depth, s.theta_prob, s.theta_sib, tau)
    if name != "hybrid":
        return model
    from research.hybrid import Hybrid

    return Hybrid(pool.Scored(outputs=earlier, rule="blend"), model, s.sure)
