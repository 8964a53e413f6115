# SPDX-License-Identifier: Apache-2.0
"""SuffixDecoding: drafts from suffix trees of earlier outputs and of the request's own text (Oliaro et al. 2024).

Claims: the two suffix trees together gain more than either alone, and that of earlier outputs more than that of the
request (figure 7). More earlier outputs gain more (figure 8). A row of docs/trials.md is on the claim that trees gain
more than chains (table 2): no engine verifies trees.

Method (section 3): every suffix of the text that occurs in a suffix tree is a match. From a match of p tokens a draft
of at most 4p tokens grows greedily, always by the most probable token, where probabilities are shares of the
occurrences. The draft with the highest sum of probabilities is verified. This is sam_core's rule `suffix`, with chains;
tests/sam_core/test_rules.py compares it with the paper's algorithm.

Verdict, tokens per step on code, long reasoning, mathematics and RL answers: both suffix trees gain 1.22 to 1.38 times
as much as that of earlier outputs, and 1.18 to 1.46 times as much as that of the request; all earlier outputs 1.014 to
1.231 times as much as 64. The suffix tree of earlier outputs is not better than that of the request: 0.86 times on
mathematics, no difference shown on the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sam_lab.drafters import SamDrafter
from sam_lab.papers.claims import Claim, Recording
from sam_lab.recordings import temporary_corpus

FEW = 64


def suffix_decoding(outputs: list[list[int]], request: bool = True) -> SamDrafter:
    """Return a drafter with the suffix tree of these outputs and the suffix tree of the request."""
    known = temporary_corpus(outputs) if outputs else contextlib.nullcontext()
    with known as corpus:  # a corpus is a source too; requests are not in groups, so "group" adds nothing
        return SamDrafter(rule="suffix", sources=["request" if request else "group"], corpus=corpus)


def claims(recording: Recording) -> Iterator[Claim]:
    outputs = recording.outputs
    both = recording.counts(suffix_decoding(outputs))
    earlier = recording.counts(suffix_decoding(outputs, request=False))
    request = recording.counts(suffix_decoding([]))
    yield Claim("both suffix trees gain more than that of earlier outputs", both, earlier)
    yield Claim("both suffix trees gain more than that of the request", both, request)
    yield Claim("the tree of earlier outputs gains more than that of the request", earlier, request)
    few = recording.counts(suffix_decoding(outputs[:FEW]))
    yield Claim(f"all earlier outputs gain more than {FEW}", both, few)
