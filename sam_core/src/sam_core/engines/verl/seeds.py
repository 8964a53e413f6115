# SPDX-License-Identifier: Apache-2.0
"""Seeds of verl's rollout requests, derived from their places in the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sam_core.engines.vllm.config import speculative_config, verify_mode
from sam_core.seeds import request_seed

VAL_SEED = "actor_rollout_ref.rollout.val_kwargs.seed"


def prompt_place(step: int, number: int, val_seed: int | None, validation: bool) -> tuple[int, int]:
    """The step and the number of a prompt that its seeds are derived from; see request_seed.

    Prompts are numbered 0, 1, ... in training and -1, -2, ... in validation, so no two share a place. With a val_seed,
    validations of the same prompts have the same places in every step.

    Args:
        step: training step.
        number: index of the prompt in the step or the validation, from 0.
        val_seed: verl's `rollout.val_kwargs.seed`; None: places depend on the step.
    """
    if not validation:
        return step, number
    return step if val_seed is None else val_seed, -1 - number


class PromptPlaces:
    """Assigns places to the prompts of a run, within a training step in the order of their requests.

    Args:
        val_seed: as in prompt_place.
    """

    def __init__(self, val_seed: int | None) -> None:
        self._val_seed = val_seed
        self._step: int | None = None
        self._count = 0

    def __call__(self, step: int, count: int, validated: int | None) -> list[tuple[int, int]]:
        """The places of the next `count` prompts in training step `step`.

        Args:
            validated: number of earlier prompts in this validation; None in training.
        """
        if validated is None:
            if step != self._step:
                self._step, self._count = step, 0
            first = self._count
            self._count += count
        else:
            first = validated
        numbers = range(first, first + count)
        return [prompt_place(step, number, self._val_seed, validated is not None) for number in numbers]


def wants_seeds(engine_kwargs: Mapping[str, Any], val_seed: int | None = None) -> bool:
    """Whether a vLLM engine with these arguments samples by seed, with speculation or without it.

    Raises ValueError if val_seed is no integer, or is given but the engine does not sample by seed.
    """
    speculative = speculative_config(engine_kwargs)
    mode = verify_mode(speculative.get("method"), speculative.get("sam"), engine_kwargs.get("additional_config"))
    seeded = mode == "seeded"
    if val_seed is not None and (not isinstance(val_seed, int) or isinstance(val_seed, bool)):
        raise ValueError(f"{VAL_SEED} must be an integer or null, got {val_seed!r}")
    if val_seed is not None and not seeded:
        raise ValueError(
            f"{VAL_SEED} is {val_seed}, but the engine does not sample by seed: set sam.verify=seeded in its "
            "speculative_config, or without speculation "
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.sam_verify=seeded"
        )
    return seeded


def row_seeds(rollout: Any, engine_kwargs: Mapping[str, Any]) -> Callable[[bool, int, int, int], list[int]] | None:
    """A function (validate, step, first, count) that returns the seeds of rows first .. first + count - 1.

    The rows are those of rollout number `step` or of a validation. Returns None if the engine does not sample by seed.
    Raises ValueError as `wants_seeds` does.

    Args:
        rollout: verl's configuration of its rollouts; each prompt has `n` consecutive rows, in validation
            `val_kwargs.n`.
        engine_kwargs: the engine's arguments.
    """
    val_seed = rollout.val_kwargs.get("seed")
    if not wants_seeds(engine_kwargs, val_seed):
        return None

    def seeds(validate: bool, step: int, first: int, count: int) -> list[int]:
        rows = (divmod(row, rollout.val_kwargs.n if validate else rollout.n) for row in range(first, first + count))
        return [request_seed(rollout.seed, *prompt_place(step, prompt, val_seed, validate), i) for prompt, i in rows]

    return seeds
