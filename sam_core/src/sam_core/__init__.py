# SPDX-License-Identifier: Apache-2.0
"""Suffix-automaton drafts for speculative decoding."""

from sam_core._sam import BY_PROMPT, SOURCES, Pool

__version__ = "0.2.0"
"""The engine patches name its major.minor; see `Options.from_engine`."""

__all__ = ["BY_PROMPT", "SOURCES", "Pool", "__version__"]
