# SPDX-License-Identifier: Apache-2.0
"""Seeds of verl's rollout requests, from their places in the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sam_core.engines.vllm.config import speculative_config
from sam_core.seeds import request_seed


def request_seeds(run_seed: int, step: int, first: int, count: int, siblings: int) -> list[int]:
    """The seeds of rows first..first+count of a rollout's batch with `siblings` consecutive rows per prompt."""
    return [request_seed(run_seed, step, *divmod(row, siblings)) for row in range(first, first + count)]


class PromptNumbers:
    """Numbers the prompts of each training step in the order of their requests: 0, 1, ...; in validation -1, -2, ..."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._count = {False: 0, True: 0}

    def __call__(self, step: int, count: int, validation: bool) -> list[int]:
        """The numbers of the next `count` prompts in training step `step`."""
        if step != self._step:
            self._step, self._count = step, {False: 0, True: 0}
        first = self._count[validation]
        self._count[validation] += count
        return [-1 - i if validation else i for i in range(first, first + count)]


def wants_seeds(engine_kwargs: Mapping[str, Any]) -> bool:
    """Whether a vLLM engine with these arguments samples by seed, with speculation or without it."""
    sam = speculative_config(engine_kwargs).get("sam") or {}
    return "seeded" in (sam.get("verify"), (engine_kwargs.get("additional_config") or {}).get("sam_verify"))


def row_seeds(
    rollout: Any, engine_kwargs: Mapping[str, Any], validate: bool, step: int, first: int, count: int
) -> list[int | None]:
    """The seeds of rows first..first+count of the batch of rollout number `step`; all None if the engine takes none.

    Args:
        rollout: verl's configuration of its rollouts; each prompt has `n` consecutive rows, in validation
            `val_kwargs.n`.
        engine_kwargs: the engine's arguments.
    """
    if not wants_seeds(engine_kwargs):
        return [None] * count
    return [*request_seeds(rollout.seed, step, first, count, rollout.val_kwargs.n if validate else rollout.n)]
