# SPDX-License-Identifier: Apache-2.0
"""Recipes for reinforcement learning of Qwen3 with suffix-automaton drafting, and their shared code."""

import os
import sys
from types import TracebackType


def _one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A sys.excepthook that reports a missing package in one sentence."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("llm_rl"):
        print(
            f"error: {sys.executable} cannot import {error.name}: use the environment of a pin set, which ci/setup-env "
            f"{os.environ.get('PIN', 'vllm-0.23')} creates, or install the package",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # `python -m llm_rl...` before it imports its module
    if sys.version_info < (3, 11):
        sys.exit(f"error: llm_rl needs Python 3.11 or newer, but {sys.executable} is {sys.version.split()[0]}")
    sys.excepthook = _one_sentence
