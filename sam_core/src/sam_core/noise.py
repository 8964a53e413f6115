# SPDX-License-Identifier: Apache-2.0
"""Seeds of rollout requests: the key of the noise that an answer is sampled with (seeded verification).

An engine's request ids are random, and the answers to one prompt must differ. So a request's seed comes from where it
stands in the run, which is the same in a second run and on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sam_core.options import speculative_config

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def request_seed(run_seed: int, step: int, prompt: int, sibling: int) -> int:
    """The seed, 0 <= seed < 2**63, of answer `sibling` to prompt number `prompt` of rollout number `step`.

    Each number is taken modulo 2**64 and goes through the finaliser of SplitMix64, in turn: for given other three,
    2**63 different seeds come from 2**64 values of the last.
    """
    key = 0
    for number in (run_seed, step, prompt, sibling):
        key = (key + number + _GOLDEN) & _MASK
        key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ key >> 27) * 0x94D049BB133111EB) & _MASK
        key ^= key >> 31
    return key >> 1


def request_seeds(run_seed: int, step: int, first: int, count: int, siblings: int) -> list[int]:
    """The seeds of rows first..first+count of a rollout's batch, in which `siblings` rows a prompt follow each other."""
    return [request_seed(run_seed, step, *divmod(row, siblings)) for row in range(first, first + count)]


class PromptNumbers:
    """Numbers the prompts of each rollout: 0, 1, ... in the order in which they are asked, -1, -2, ... in validation."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._asked = {False: 0, True: 0}

    def __call__(self, step: int, count: int, validation: bool) -> list[int]:
        """The numbers of `count` prompts that are asked next, in training step `step`."""
        if step != self._step:
            self._step, self._asked = step, {False: 0, True: 0}
        first = self._asked[validation]
        self._asked[validation] += count
        return [-1 - i if validation else i for i in range(first, first + count)]


def wants_seeds(engine_kwargs: Mapping[str, Any]) -> bool:
    """Whether an engine with these arguments samples by seed, with speculation or (to compare with) without it."""
    sam = speculative_config(engine_kwargs).get("sam") or {}
    return "seeded" in (sam.get("verify"), (engine_kwargs.get("additional_config") or {}).get("sam_verify"))


def row_seeds(rollout: Any, validate: bool, step: int, first: int, count: int) -> list[int | None]:
    """The seeds of rows first..first+count of the batch of rollout number `step`; all None where none are wanted.

    rollout: verl's configuration of its rollouts; the rows of a prompt, n of them or val_kwargs.n, follow each other.
    """
    if not wants_seeds(rollout.engine_kwargs.get("vllm") or {}):
        return [None] * count
    return [*request_seeds(rollout.seed, step, first, count, rollout.val_kwargs.n if validate else rollout.n)]
