# SPDX-License-Identifier: Apache-2.0
"""Rebinds functions in the process of a vLLM engine: its history, its step log, and how it is paused."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sam_core.engines.hooks import rebind
from sam_core.engines.verl.plugin.run import engine_arguments, uses_sam
from sam_core.engines.verl.rollout_log import engine_stats
from sam_core.engines.vllm.config import has_sam, replica_history
from sam_core.engines.vllm.step_log import StepLog


def install(module: ModuleType) -> None:
    """Rebind names in verl.workers.rollout.vllm_rollout.vllm_async_server."""
    server, client = module.vLLMHttpServer, module.AsyncLLM

    class CountingLLM(client):  # type: ignore[misc, valid-type]
        """vLLM's AsyncLLM that counts its steps if it has method sam, or is compared with an engine that has."""

        @classmethod
        @functools.wraps(client.from_vllm_config.__func__)
        def from_vllm_config(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
            step_log = None
            if has_sam(vllm_config) or "sam_verify" in (vllm_config.additional_config or {}):
                step_log = StepLog(int(os.environ["VERL_REPLICA_RANK"]))
                kwargs["stat_loggers"] = [*(kwargs.get("stat_loggers") or []), step_log]
            engine = super().from_vllm_config(vllm_config, *args, **kwargs)
            engine.sam_step_log = step_log
            return engine

    async def spec_stats(self: Any, write: bool = True) -> dict[str, float] | None:
        """The engine's counts since the previous call; None if it does not count."""
        step_log = self.engine.sam_step_log
        return step_log and await engine_stats(self.engine, step_log, write)

    module.AsyncLLM = CountingLLM  # type: ignore[attr-defined]
    server.spec_stats = spec_stats
    rebind(server, "_preprocess_engine_kwargs", _preprocess_engine_kwargs)


def _preprocess_engine_kwargs(preprocess: Callable[[Any, dict[str, Any]], None]) -> Callable[..., None]:
    def preprocess_engine_kwargs(self: Any, engine_kwargs: dict[str, Any]) -> None:
        preprocess(self, engine_kwargs)
        replica_history(engine_kwargs, self.replica_rank)
        rollout = {"engine_kwargs": {"vllm": engine_kwargs}}
        if uses_sam(rollout):
            mtp, split = self.config.get("mtp"), self.config.get("disaggregation")
            joins = engine_arguments(rollout)["speculative_config"].get("method") is None  # verl adds MTP's
            for on, key, instead in (
                (
                    mtp and mtp.get("enable") and mtp.get("enable_rollout") and not joins,
                    "model.mtp.enable_rollout",
                    "keep one, or leave out speculative_config.method to draft with both",
                ),
                (split and split.get("enabled"), "rollout.disaggregation.enabled", "keep one"),
            ):
                if on:
                    raise ValueError(
                        f"actor_rollout_ref.{key} and method sam in "
                        f"actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config are both on: {instead}"
                    )

    return preprocess_engine_kwargs


def install_pause(module: ModuleType) -> None:
    """Let AsyncLLM.pause_generation accept `wait_for_inflight_requests`, which vLLM has replaced by `mode` since 0.32.

    verl 0.9.1 passes it to interrupt requests (vllm_async_server.py, abort_all_requests), with or without speculation.
    """
    client: Any = getattr(module, "AsyncLLM", None)
    if client is None or "wait_for_inflight_requests" in inspect.signature(client.pause_generation).parameters:
        return

    class Pausing(client):
        """vLLM's AsyncLLM with the argument that verl passes."""

        @functools.wraps(client.pause_generation)
        async def pause_generation(self, *, wait_for_inflight_requests: bool | None = None, **kwargs: Any) -> None:
            if wait_for_inflight_requests is not None:
                kwargs["mode"] = "wait" if wait_for_inflight_requests else "abort"
            await super().pause_generation(**kwargs)

    module.AsyncLLM = Pausing  # type: ignore[attr-defined]
