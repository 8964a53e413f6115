# SPDX-License-Identifier: Apache-2.0
"""sam_core in plain Python, the oracle of the tests: `Pool` drafts what `sam_core.Pool` drafts.

To learn how drafts come about, read in this order:
    automaton   finds the longest end of a text in earlier texts, and what followed it there
    model       estimates how likely a token is to follow, given how often it did
    rules       draft a chain of tokens from both, and learn from the tokens that came
    pool        holds requests, their groups, and what these remember

All of it is integer arithmetic, so the same calls give the same drafts, scores and tables as the C, bit for bit. It is
about a hundred times slower.
"""

from twin.pool import Pool

__all__ = ["Pool"]
