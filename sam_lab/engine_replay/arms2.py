# SPDX-License-Identifier: Apache-2.0
"""The arms on vLLM's second runner; each has its own engine, which begins without texts."""

from __future__ import annotations

import re
from typing import Any

from sam_lab.cli import LabError

ARMS = ("plain", "ngram_gpu:3", "sam:3", "schedule", "auto")
FIXED = re.compile(r"(ngram_gpu|sam):([1-9][0-9]*)")


def check(arm: str) -> None:
    """Raise LabError if there is no such arm."""
    if arm not in ("plain", "schedule", "auto") and not FIXED.fullmatch(arm):
        raise LabError(
            f"unknown arm {arm!r} of the second runner: choose from plain, ngram_gpu:K, sam:K, schedule, auto"
        )


def speculative_config(arm: str, k: int, max_seqs: int, verify: str) -> dict[str, Any] | None:
    """vLLM's speculative_config of an arm; None for `plain`.

    Args:
        k: maximum draft tokens of a request in `auto`.
        max_seqs: maximum concurrent requests.
        verify: option of method sam.
    """
    if arm == "plain":
        return None
    sam: dict[str, Any] = {"verify": verify}
    if fixed := FIXED.fullmatch(arm):
        method, k = fixed[1], int(fixed[2])
        if method == "ngram_gpu":
            return {"method": method, "num_speculative_tokens": k}
        return {"method": "sam", "num_speculative_tokens": k, "sam": sam | {"threshold": max_seqs}}
    if arm == "auto":
        return {"method": "sam", "num_speculative_tokens": k, "sam": sam | {"switch": "auto"}}
    from sam_core.engines.vllm.plugin.config import by_batch_size
    from sam_core.options import MAX_K

    return {
        "method": "sam",
        "num_speculative_tokens": MAX_K,
        "num_speculative_tokens_per_batch_size": by_batch_size(MAX_K),
        "sam": sam | {"switch": "batch"},
    }
