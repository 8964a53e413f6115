# SPDX-License-Identifier: Apache-2.0
"""Rebinds functions in the processes of verl's trainers: the router, and rollout/spec/* in their step logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from sam_core.engines.hooks import rebind
from sam_core.engines.verl.plugin import agents
from sam_core.engines.verl.plugin.run import is_watched, uses_sam
from sam_core.engines.verl.rollout_log import add_taken, log_prob_histogram, step_metrics

WATCHED: list[Any] = []
"""The Counters in this process whose engines count."""


class Counters:
    """Counts what the engines of a trainer do in its current step.

    Args:
        trainer: verl's trainer; its configuration says whether its engines count.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._watched = is_watched(trainer.config.actor_rollout_ref.rollout)
        if self._watched:
            WATCHED.append(self)
        self._replicas: dict[int, dict[str, float]] = {}

    @classmethod
    def of(cls, trainer: Any) -> Counters:
        """The Counters of a trainer, which stores them."""
        if not hasattr(trainer, "sam_counters"):
            trainer.sam_counters = cls(trainer)
        counters: Counters = trainer.sam_counters
        return counters

    def ask(self, write: bool = True) -> dict[int, Any]:
        """Ray references to the counts of each replica's engine since it was last asked, by number of the replica.

        Args:
            write: as in StepLog.take.
        """
        if not self._watched:
            return {}
        if hasattr(self._trainer, "_rollout_server_managers"):
            managers = self._trainer._rollout_server_managers()
        else:
            managers = [self._trainer.llm_server_manager]
        replicas = [replica for manager in managers for replica in _replicas(manager)]
        return {replica.replica_rank: replica.servers[0].spec_stats.remote(write) for replica in replicas}

    def take(self) -> None:
        """Ask the engines, and keep their answers until `metrics`."""
        if asked := self.ask():
            import ray

            self._keep(asked, ray.get([*asked.values()]))

    async def take_async(self) -> None:
        asked = self.ask()
        self._keep(asked, await asyncio.gather(*asked.values()))

    def _keep(self, replicas: Iterable[int], answers: Iterable[Mapping[str, float]]) -> None:
        for rank, taken in zip(replicas, answers, strict=True):
            add_taken(self._replicas.setdefault(rank, {}), taken)

    def forget(self) -> None:
        """Discard the engines' counts since they were last asked."""
        if asked := self.ask(write=False):
            import ray

            ray.get([*asked.values()])

    def metrics(self) -> dict[str, float]:
        """rollout/spec/* from the answers that were kept, which are discarded; empty if the engines do not count."""
        replicas, self._replicas = self._replicas, {}
        return step_metrics(replicas.values()) if replicas else {}


def _replicas(manager: Any) -> list[Any]:
    """All replicas of an LLMServerManager. fully_async keeps those on the trainer's devices in `hybrid_replicas`."""
    return [*manager.rollout_replicas, *getattr(manager, "hybrid_replicas", {}).values()]


def install_router(module: ModuleType) -> None:
    """Rebind names in verl.workers.rollout.llm_server."""
    rebind(module.LLMServerManager, "_init_global_load_balancer", _init_global_load_balancer)


def _init_global_load_balancer(init: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def init_global_load_balancer(self: Any) -> None:
        rollout, named = self.rollout_config, self._load_balancer_cls
        free = not (named or rollout.get("router_config_path") or rollout.get("full_determinism"))
        if free and uses_sam(rollout):
            from sam_core.engines.verl.router import PromptRouter

            self._load_balancer_cls = PromptRouter
        await init(self)

    return init_global_load_balancer


def install_v1(module: ModuleType) -> None:
    """Rebind names in verl.trainer.ppo.v1.trainer_base."""
    rebind(module.PPOTrainer, "_consume_sync_metrics", _consume_sync_metrics)
    rebind(module.PPOTrainer, "_validate", _validate)


def install_v0(module: ModuleType) -> None:
    """Rebind names in verl.trainer.ppo.ray_trainer, for the trainers of verl.experimental."""
    rebind(module.RayPPOTrainer, "_validate", _validate)


def _consume_sync_metrics(consume: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def consume_sync_metrics(self: Any) -> dict[str, Any]:
        counters = Counters.of(self)
        counters.take()
        return {**consume(self), **counters.metrics()}

    return consume_sync_metrics


def _validate(validate: Callable[..., Any]) -> Callable[..., Any]:
    def validate_apart(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave validation out of the counts, except if the trainer generates for training at the same time."""
        manager = getattr(self, "agent_loop_manager", None) or getattr(self, "async_rollout_manager", None)
        if manager is not None:
            agents.Numbering.of(manager).begin_validation()
        counters, texts, log = Counters.of(self), Counter[tuple[str, str]](), self._maybe_log_val_generations

        def note(inputs: Iterable[str], outputs: Iterable[str], scores: Any) -> None:
            texts.update(zip(inputs, outputs, strict=True))
            log(inputs=inputs, outputs=outputs, scores=scores)

        alone = getattr(self, "trainer_mode", None) == "sync"
        if alone:
            counters.take()
        self._maybe_log_val_generations = note
        try:
            metrics = validate(self, *args, **kwargs)
        finally:
            del self._maybe_log_val_generations
            if alone:
                counters.forget()
        if self.config.actor_rollout_ref.rollout.val_kwargs.get("seed") is None or args or kwargs:
            return metrics
        last, self.sam_validated = getattr(self, "sam_validated", None), texts
        return metrics | ({"val/unchanged": (last & texts).total() / texts.total()} if last and texts else {})

    return validate_apart


def install_one_step_off(module: ModuleType) -> None:
    """Rebind names in verl.experimental.one_step_off_policy.ray_trainer."""
    rebind(module.OneStepOffRayTrainer, "_fit_generate", _fit_generate)


def _fit_generate(fit: Callable[..., Any]) -> Callable[..., Any]:
    async def fit_generate(self: Any, batch_data_future: Any, continuous_iterator: Any) -> Any:
        counters = Counters.of(self)
        await asyncio.wait([batch_data_future])
        await counters.take_async()
        self.metrics.update(counters.metrics())
        return await fit(self, batch_data_future, continuous_iterator)

    return fit_generate


def install_fully_async(module: ModuleType) -> None:
    """Rebind names in verl.experimental.fully_async_policy.fully_async_rollouter."""
    rebind(module.FullyAsyncAgentLoopManager, "generate_sequences_single", _generate_sequences_single)
    rebind(module.FullyAsyncRollouter.__ray_metadata__.modified_class, "reset_staleness", _reset_staleness)


def _generate_sequences_single(generate: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_sequences_single(self: Any, prompts: Any) -> Any:
        agents.place_rows(self, prompts)
        return await generate(self, prompts)

    return generate_sequences_single


def _reset_staleness(reset: Callable[..., Any]) -> Callable[..., Any]:
    async def reset_staleness(self: Any, **trace: Any) -> dict[str, Any]:  # trace: Ray's, if it traces
        timing = await reset(self, **trace)
        counters = Counters.of(self)
        await counters.take_async()
        return {**timing, **counters.metrics()}

    return reset_staleness


def install_metrics(module: ModuleType) -> None:
    """Rebind names in verl.utils.debug.metrics."""
    rebind(module, "calculate_debug_metrics", _calculate_debug_metrics)


def _calculate_debug_metrics(calculate: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def calculate_debug_metrics(data: Any) -> dict[str, Any]:
        metrics, batch = calculate(data), data.batch
        if not (WATCHED and metrics["training/rollout_probs_diff_valid"]):
            return metrics
        mask = batch["response_mask"] if "response_mask" in batch else batch["attention_mask"]
        mask = mask[:, -batch["responses"].size(1) :].bool()
        return metrics | log_prob_histogram((batch["old_log_probs"] - batch["rollout_log_probs"])[mask])

    return calculate_debug_metrics
