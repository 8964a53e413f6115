# SPDX-License-Identifier: Apache-2.0
"""What all modules of the plugin use."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

LOGGER = logging.getLogger("vllm.sam_core")


def rebind(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute of a class or module."""
    setattr(owner, name, rebound(getattr(owner, name), make))


def rebound(original: Any, make: Callable[[Any], Any]) -> Any:
    """`make(original)`, with the original's name."""
    return functools.wraps(original)(make(original))


def is_sam(vllm_config: Any) -> bool:
    """Whether an engine's VllmConfig is one of method sam, by this plugin."""
    return getattr(vllm_config.speculative_config, "is_sam", False)
