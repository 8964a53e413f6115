# SPDX-License-Identifier: Apache-2.0
"""Experiments on the claims of the papers and of the article, run by one command.

replayed    SuffixDecoding's and REST's experiments, on recordings
article     the article's, on recordings
decoded     experiments on models
claims      what the papers claim, and whether a table agrees
shapes      what trees of a draft model look like
merges      how far the draft model's distributions at merged nodes lie apart
figure      figures of the results
command     `python -m sam_lab papers`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sam_lab.replay import RATE, Counts, interval, quotient

Row = dict[str, Any]
"""A row of a table by the names of its columns; texts, integers and floats, None where there is nothing to say."""


@dataclass(frozen=True)
class Experiment:
    """One table.

    Attributes:
        name: for the command line.
        title: of the table.
        text: what the columns mean, in a sentence or two.
        run: makes the rows.
        of: its data: each recording, all recordings together, or the models.
    """

    name: str
    title: str
    text: str
    run: Callable[[Any, Limits], list[Row]]
    of: Literal["recording", "recordings", "models"] = "recording"


def measured(name: str, counts: Counts, others: Counts | None = None, parts: tuple[int, int] = RATE) -> Row:
    """A column with a `quotient`, and one with its interval by bootstrap over prompts."""
    return {name: quotient(counts, others, parts), f"{name}: 95 %": interval(counts, others, parts)}


def experiment(name: str, title: str, text: str, of: str = "recording") -> Callable[[Callable], Experiment]:
    """Makes an Experiment of a function of its data and Limits."""
    return lambda run: Experiment(name, title, text, run, of)


@dataclass(frozen=True)
class Limits:
    """How much is measured: max_tokens of each recording in a configuration, at least a whole scope (the plain-Python twin
    takes a quarter of it, the article's experiments twice and four times as many); seed of what is drawn at random."""

    max_tokens: int
    seed: int
