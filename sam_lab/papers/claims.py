# SPDX-License-Identifier: Apache-2.0
"""What the papers claim, as a column of a table and the range that agrees, and what is not shown here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sam_lab.papers import Row

SD, REST, GSD = "SuffixDecoding", "REST", "GSD"
AGREES, CONTRADICTS, OPEN = "agrees", "does not", "not shown"
RULE = (
    "Agrees: all of the interval lies where the claim has it. Does not: none of it. Not shown: a part of it, or there is no "
    "interval."
)


@dataclass(frozen=True)
class Claim:
    """A claim agrees where the value lies above `low` and below `high`.

    Attributes:
        table, column: the experiment that measures it, and the column of the value.
        where: columns and values of the rows that it is about.
    """

    paper: str
    text: str
    table: str
    column: str
    low: float = -math.inf
    high: float = math.inf
    where: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, value: float, interval: Sequence[float] | None) -> str:
        """By the interval: not shown where it holds a bound, or there is none."""
        if interval is None:
            return OPEN
        if self.low < interval[0] and interval[1] < self.high:
            return AGREES
        return CONTRADICTS if interval[1] <= self.low or interval[0] >= self.high else OPEN


CLAIMS = (
    Claim(SD, "trees accept more than chains (table 2)", "sd-forms", "SD-T / SD-L", 1),
    Claim(SD, "both trees beat the better one (figure 7)", "sd-trees", "both / better", 1),
    Claim(SD, "the global tree beats the request's (figure 7)", "sd-trees", "global / request", 1),
    Claim(SD, "more earlier outputs help (figure 8)", "sizes", "SD-T: ratio", 1),
    Claim(
        SD,
        "the accepted share changes by under 10 % with their number",
        "sizes",
        "SD-T: ratio of accepted shares",
        0.9,
        1.1,
    ),
    Claim(SD, "longer matches accept more (figure 2 a)", "matches", "SD-T: ratio", 1, where={"match": "10-15"}),
    Claim(SD, "MAX_SPEC = alpha p beats a constant (figure 2 b)", "sd-limit", "ratio", 1, where={"MAX_SPEC": "4 p"}),
    Claim(
        SD, "it adapts to answers of another kind (figure 9)", "sd-shift", "/ frozen", 1, where={"the tree": "online"}
    ),
    Claim(
        SD, "then within 5 % of a tree of these answers", "sd-shift", "/ trained", 0.95, where={"the tree": "online"}
    ),
    Claim(REST, "a larger datastore helps (table 2)", "sizes", "REST: ratio", 1),
    Claim(REST, "n_max under 6 is slower (figure 3)", "rest-settings", "ratio", high=1, where={"setting": "n_max = 2"}),
    Claim(
        REST,
        "m = 10 suffices: m = 20 gains under 2 %",
        "rest-settings",
        "ratio",
        high=1.02,
        where={"setting": "m = 20"},
    ),
    Claim(REST, "c under 48 is slower (figure 12)", "rest-settings", "ratio", high=1, where={"setting": "c = 32"}),
    Claim(
        REST, "a datastore of the task gains more than a generic one", "rest-datastore", "generic, all / own", high=1
    ),
    Claim(REST, "the same with as many tokens", "rest-datastore", "generic, same size / own", high=1),
    Claim(REST, "the generic one's gain, of the own one's", "rest-datastore", "generic, all / own: gain", 0, 1),
    Claim(
        REST,
        "80 to 90 % of the matches have 2 to 9 tokens (figure 13)",
        "matches",
        "REST: share of the steps",
        0.8,
        0.9,
        {"match": "2-9"},
    ),
    Claim(REST, "the trie beats a random choice (table 3)", "rest-choice", "trie / random", 1),
    Claim(REST, "a retrieval takes under 1 ms: 99 %, us", "rest-times", "99 %, us", high=1000),
    *(
        Claim(
            REST,
            f"nucleus gains less ({sampling})",
            "nucleus",
            f"{sampling} / greedy",
            high=1,
            where={"method": "REST, trie"},
        )
        for sampling in ("T 0.8, top-p 0.95", "T 0.7, top-p 0.8")
    ),
    Claim(GSD, "trees accept 10 % more than chains (table 1)", "gsd", "/ ssd", 1.1, where={"method": "tsd"}),
    Claim(GSD, "graphs accept 10 % more than chains (table 1)", "gsd", "/ ssd", 1.1, where={"method": "gsd"}),
    Claim(GSD, "graphs accept more than trees (table 1)", "gsd", "/ tsd", 1),
    Claim(GSD, "graphs have at most a third of the tree's nodes", "gsd", "nodes / tsd", high=1 / 3),
    Claim(
        GSD, "drafts with a token behind a merged node: 20 to 40 %", "gsd", "graph success", 0.2, 0.4, {"method": "gsd"}
    ),
    Claim(GSD, "more children accept more: 6 against 1 (figure 5 a)", "gsd-width", "/ k = 1", 1, where={"k": 6}),
    Claim(GSD, "a graph's nodes grow less than a tree's, k = 6", "gsd-width", "nodes / tsd", high=1, where={"k": 6}),
    Claim(
        GSD,
        "nodes with tau 4 against 1 (figure 5 b): more",
        "gsd-thresholds",
        "nodes",
        1,
        where={"threshold": "tau", "value": "4"},
    ),
    Claim(
        GSD,
        "tokens a step with tau 4 against 1: fewer",
        "gsd-thresholds",
        "ratio",
        high=1,
        where={"threshold": "tau", "value": "4"},
    ),
    Claim(
        GSD,
        "with theta_prob 0.4 against 0.05: more",
        "gsd-thresholds",
        "ratio",
        1,
        where={"threshold": "theta_prob", "value": "0.4"},
    ),
    Claim(
        GSD,
        "with theta_sib 0.7 against 0.05: fewer",
        "gsd-thresholds",
        "ratio",
        high=1,
        where={"threshold": "theta_sib", "value": "0.7"},
    ),
    Claim(
        GSD,
        "60 to 80 % of a tree's tokens stand on several branches (figure 3)",
        "gsd-shapes",
        "1-grams again",
        0.6,
        0.8,
        {"tau": 0},
    ),
    Claim(
        GSD,
        "40 to 60 % of the accepted tokens are not the first child (figure 7)",
        "gsd-shapes",
        "not child 1",
        0.4,
        0.6,
        {"tau": 1, "theta_sib": 0.1},
    ),
    Claim(
        GSD,
        "fewer siblings with theta_sib 0.7 than with 0.1 (figure 8)",
        "gsd-shapes",
        "not child 1: ratio",
        high=1,
        where={"theta_sib": 0.7},
    ),
    Claim(
        GSD,
        "merged nodes differ less with tau 4 than with 1 (table 5)",
        "gsd-divergence",
        "KL / tau = 1",
        high=1,
        where={"tau": 4},
    ),
    Claim(
        GSD, "merging changes a distribution by under 0.001 nats (table 5)", "gsd-divergence", "KL, mean", high=0.001
    ),
)
NOT_SHOWN = (
    (
        SD,
        "tables 1 and 2, figures 4 and 5: throughput, latency, acceptance beside SpecInfer",
        "its models need a device",
    ),
    (SD, "figure 6 (a tree of 66 tokens) and figure 7 (AgenticSQL)", "the data are proprietary"),
    (REST, "tables 1, 4 and 5, figures 4 to 11: seconds a token", "its models need a device"),
    (REST, "datastores of 0.5 to 27 GB", "the texts are not here; the largest has 10 million tokens"),
    (REST, "more than 200 drafted tokens are slower (figure 12)", "needs a device; the replay counts steps"),
    (GSD, "tables 1 and 6 to 9: speed-up", "its models need a device"),
    (GSD, "tables 2 and 10: the sampled form", "it is not exact, and is not offered"),
    (GSD, "table 3: seconds of each part", "its models need a device"),
    (GSD, "table 4: Medusa", "no model with Medusa heads here"),
    (GSD, "figure 6: an answer as an example", "nothing to measure"),
)
"""Paper, what of it is not measured, and why."""


def judge(tables: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    """Of each row that a claim is about the value, the interval and the verdict."""
    for claim in CLAIMS:
        for row in tables.get(claim.table, ()):
            value = row.get(claim.column)
            if value is None or any(row.get(column) != wanted for column, wanted in claim.where.items()):
                continue
            bounds = row.get(f"{claim.column}: 95 %") if f"{claim.column}: 95 %" in row else [value, value]
            verdict = claim.verdict(value, bounds)
            yield {
                "paper": claim.paper,
                "claim": claim.text,
                "of": _of(row, claim),
                "value": value,
                "95 %": bounds,
                "verdict": verdict,
            }


SETTINGS = {"recording": "", "earlier outputs": "after ", "sampling": "", "theta_prob, theta_sib": ""}
SETTINGS |= {"theta_prob": "", "theta_sib": "", "tau": "tau ", "method": ""}
"""Columns that say what a row is of, and the words before their values."""


def _of(row: Row, claim: Claim) -> str:
    named = [name for name in SETTINGS if name in row and not (name == "method" and name in claim.where)]
    return ", ".join(f"{SETTINGS[name]}{row[name]}" for name in named)
