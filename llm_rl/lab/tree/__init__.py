# SPDX-License-Identifier: Apache-2.0
"""Tree verification on a transformers causal LM: one decoder for every drafting method."""

from collections.abc import Sequence

Tree = tuple[Sequence[int], Sequence[int]]
"""Tokens and parents of nodes, parents first; parent -1 is the end of the text."""
