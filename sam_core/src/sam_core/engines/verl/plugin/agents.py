# SPDX-License-Identifier: Apache-2.0
"""Rebinds verl's functions that distribute prompts and make requests, to add groups, seeds and a log of answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from sam_core.engines.hooks import rebind
from sam_core.engines.verl.groups import group_params
from sam_core.engines.verl.plugin.run import engine_arguments, is_watched, uses_sam
from sam_core.engines.verl.rollout_log import log_answer
from sam_core.engines.verl.seeds import PromptPlaces, wants_seeds
from sam_core.seeds import request_seed

COLUMN = "sam_place"
"""Column of a batch: step and number of each prompt, and the answer's number if each answer has a row."""
Place = tuple[int, int, int]
"""(training step, number of the prompt in the step, number of the answer to the prompt)."""
PLACE: ContextVar[Place | None] = ContextVar("PLACE", default=None)
"""The place of the request that the current task makes; None unless it is for training and has a seed."""


class Numbering:
    """Numbers the prompts that a run's agent-loop manager distributes.

    Args:
        rollout: verl's configuration of its rollouts.
    """

    def __init__(self, rollout: Any) -> None:
        val_seed = rollout.val_kwargs.get("seed")
        self._answers, self._val_answers = rollout.n, rollout.val_kwargs.n
        seeded = (is_watched(rollout) or val_seed is not None) and wants_seeds(engine_arguments(rollout), val_seed)
        self._places = PromptPlaces(val_seed) if seeded else None
        self._validated: dict[Any, tuple[int, int]] = {}

    @classmethod
    def of(cls, manager: Any) -> Numbering:
        """The Numbering of verl's agent-loop manager, which stores it. Raises ValueError as wants_seeds does."""
        if not hasattr(manager, "sam_numbering"):
            manager.sam_numbering = cls(manager.config.actor_rollout_ref.rollout)
        numbering: Numbering = manager.sam_numbering
        return numbering

    def begin_validation(self) -> None:
        """Begin a validation: number its prompts from the first."""
        self._validated = {}

    def prompts(self, step: int, uids: Sequence[Any], validation: bool) -> list[tuple[int, int]] | None:
        """The places of a batch's prompts; None if the engine samples without seeds.

        Args:
            uids: verl's uid of each prompt; in validation, rows with the same uid are one prompt.
        """
        if self._places is None:
            return None
        if not validation:
            return self._places(step, len(uids), None)
        for uid in uids:
            if uid not in self._validated:
                (self._validated[uid],) = self._places(step, 1, len(self._validated))
        return [self._validated[uid] for uid in uids]

    def rows(self, step: int, uids: Sequence[Any], validation: bool) -> list[Place] | None:
        """The places of a batch's answers, in which those to a prompt are consecutive; None as in `prompts`."""
        n = self._val_answers if validation else self._answers
        places = self.prompts(step, uids[::n], validation)
        if places is None:
            return None
        return [(*place, i) for place in places for i in range(n)][: len(uids)]


def install(module: ModuleType) -> None:
    """Rebind names in verl.experimental.agent_loop.agent_loop."""
    manager, worker = module.AgentLoopManager, module.AgentLoopWorker
    rebind(manager, "generate_sequences", lambda generate: module.auto_await(_generate_sequences(generate)))
    rebind(worker, "_run_agent_loop", _run_agent_loop)
    rebind(worker, "_compute_score", _compute_score)


def install_v1(module: ModuleType) -> None:
    """Rebind names in verl.trainer.ppo.v1.agent_loop_tq."""
    rebind(module.AgentLoopManagerTQ, "generate_sequences", _generate_sequences_v1)


def install_config(module: ModuleType) -> None:
    """Rebind names in verl.workers.config.rollout: let `val_kwargs` have a seed, as with this project's patches."""

    base = getattr(module, "SamplingConfig", None)
    if base is None or "seed" in base.__dataclass_fields__:
        return

    @dataclasses.dataclass
    class SamplingConfig(base):  # type: ignore[misc, valid-type]
        seed: int | None = None

    SamplingConfig.__module__, SamplingConfig.__qualname__ = module.__name__, "SamplingConfig"
    module.SamplingConfig = SamplingConfig  # type: ignore[attr-defined]


def place_rows(manager: Any, prompts: Any) -> None:
    """Give each row of a DataProto its place, from which the worker makes its seed."""
    import numpy as np

    meta, columns = prompts.meta_info, prompts.non_tensor_batch
    uids = columns["uid"] if "uid" in columns else range(len(prompts))
    if rows := Numbering.of(manager).rows(meta.get("global_steps", 1), list(uids), meta.get("validate", False)):
        columns[COLUMN] = np.empty(len(prompts), dtype=object)
        columns[COLUMN][:] = rows


def _generate_sequences(generate: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_sequences(self: Any, prompts: Any) -> Any:
        place_rows(self, prompts)
        return await generate(self, prompts)

    return generate_sequences


def _generate_sequences_v1(generate: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def generate_sequences(self: Any, prompts: Any) -> None:
        import torch

        numbering = Numbering.of(self)
        if places := numbering.prompts(prompts["global_steps"], list(prompts["uid"]), "validate" in prompts):
            prompts[COLUMN] = torch.tensor(places)
        generate(self, prompts)

    return generate_sequences


def _run_agent_loop(run: Callable[..., Any]) -> Callable[..., Any]:
    async def run_agent_loop(self: Any, sampling_params: dict[str, Any], trajectory: dict[str, Any], **row: Any) -> Any:
        rollout, validation = self.config.actor_rollout_ref.rollout, trajectory["validate"]
        place = row.pop(COLUMN, None)
        if uses_sam(rollout):
            extra_args = sampling_params.get("extra_args")
            sampling_params = {**sampling_params, **group_params(row, validation, extra_args)}
        if place is not None:
            step, prompt, *sibling = map(int, place)
            place = step, prompt, sibling[0] if sibling else row["session_id"]
            sampling_params = {**sampling_params, "seed": request_seed(rollout.seed, *place)}
        PLACE.set(None if validation else place)
        return await run(self, sampling_params, trajectory, **row)

    return run_agent_loop


def _compute_score(score: Callable[..., Any]) -> Callable[..., Any]:
    async def compute_score(self: Any, outputs: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if place := PLACE.get():
            for turn in outputs:
                log_answer(place, turn.prompt_ids, turn.response_ids, turn.response_logprobs)
        await score(self, outputs, kwargs)

    return compute_score
