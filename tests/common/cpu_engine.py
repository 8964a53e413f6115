# SPDX-License-Identifier: Apache-2.0
"""A real engine of the pinned vLLM on the CPU; its processes are forks of the tests'."""

import forked  # noqa: F401
import inspection  # noqa: F401
import waits  # noqa: F401
from llm_engine import Engine

__all__ = ["Engine"]
