# SPDX-License-Identifier: Apache-2.0
"""Logs engine steps as vLLM's front end sees them, with or without speculation, and sums them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sam_core.counters import since

try:
    import psutil  # every engine's environment has it
except ImportError:
    psutil = None

logger = logging.getLogger(__name__)

ENV_THRESHOLD = "SAM_TAIL_THRESHOLD"
"""Maximum running requests of a step in the tail of a rollout; default 8."""
ENV_LOG = "SAM_STEP_LOG"
"""Folder that receives `engine-<replica>.jsonl`, one row per engine step; unset: not written."""

MAX_ROWS = 65_536
"""Maximum rows in memory; they are written when it is reached, or by `take`."""
BEAT = 60
"""Seconds after which a step renews the modification time of the file."""
SUMS = ("decode_steps", "request_steps", "tokens", "drafts", "drafted", "accepted", "busy_s", "tail_s", "tail_tokens")
CPU = "cpu_s"
"""CPU seconds of the front end and its child processes while requests ran."""


def process_tree() -> list[Any]:
    """This process and all its descendants: an engine's core and workers on this host."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds(processes: Iterable[Any]) -> float:
    """CPU seconds, user and system, that processes have used so far; ended ones are not counted."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


async def drafter_counters(engine: Any) -> dict[str, float]:
    """SamProposer.stats() of an AsyncLLM, summed over its data-parallel engines.

    `engine.collective_rpc` asks all of them and returns the answer of the first (vllm/v1/engine/core_client.py,
    DPLBAsyncMPClient.call_utility_async).
    """
    client = engine.engine_core
    call = ("collective_rpc", "sam_stats", None, (), None)
    answers = await asyncio.gather(*(client._call_utility_async(*call, engine=one) for one in client.core_engines))
    drafters = [next(stats for stats in ranks if stats is not None) for ranks in answers]
    return {name: sum(stats[name] for stats in drafters) for name in drafters[0]}


class StepLog:
    """A stat logger of vLLM: `record` is called once per engine step, with and without speculation.

    It has the methods of vLLM's StatLoggerBase (v1/metrics/loggers.py) and is its own factory, so that it can be passed
    as `stat_loggers=[step_log]`.

    A step's seconds are the time since the engine's previous step; after idleness they are 0. Its running requests are
    those that got a token in it, so tokens / request_steps is 1 without speculation. Data-parallel engines run at the
    same time, so sums of seconds are those of the busiest engine.

    cpu_s is read only at both ends of a span of busy steps, so it adds no cost per step. It includes the polling with
    which vLLM's processes wait for each other.
    """

    def __init__(self, replica: int = 0) -> None:
        self.replica = replica
        self.threshold = int(os.environ.get(ENV_THRESHOLD, "8"))
        folder = os.environ.get(ENV_LOG)
        self.path = os.path.join(folder, f"engine-{replica}.jsonl") if folder else None
        self._beat = 0.0
        self._last: dict[int, float | None] = {}
        self._processes: list[Any] | None = None
        self._cpu_before: float | None = None
        self._rows: list[list[float]] = []
        self._sums: dict[int, dict[str, float]] = {}
        self._cpu = 0.0
        self._drafter: dict[str, float] = {}

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> StepLog:
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int | None = None
    ) -> None:
        """Count one engine step. vLLM 0.11 has no `mm_cache_stats` and passes the engine's index instead."""
        if scheduler_stats is None:
            return
        if engine_idx is None:
            engine_idx = mm_cache_stats if isinstance(mm_cache_stats, int) else 0
        now = time.monotonic()
        last = self._last.get(engine_idx)
        seconds = now - last if last is not None else 0.0
        idle = not (scheduler_stats.num_running_reqs or scheduler_stats.num_waiting_reqs)
        self._last[engine_idx] = None if idle else now
        if (self._cpu_before is None) is not all(time is None for time in self._last.values()):
            self._count_cpu(busy=self._cpu_before is None)
        running = tokens = drafts = drafted = accepted = 0
        if iteration_stats is not None:
            running = len(iteration_stats.time_to_first_tokens_iter) + len(iteration_stats.inter_token_latencies_iter)
            tokens = iteration_stats.num_generation_tokens
        if (spec := scheduler_stats.spec_decoding_stats) is not None:
            drafts, drafted, accepted = spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens
        tail = 0 < running <= self.threshold
        sums = self._sums.setdefault(engine_idx, dict.fromkeys(SUMS, 0))
        for name, value in zip(
            SUMS,
            (running > 0, running, tokens, drafts, drafted, accepted, seconds, seconds * tail, tokens * tail),
            strict=True,
        ):
            sums[name] += value
        if self.path:
            if now - self._beat >= BEAT:
                self._beat = now
                with contextlib.suppress(OSError):
                    Path(self.path).touch()  # rows come late, and a launcher looks whether engines still step
            start = round(time.time() - seconds, 6)
            self._rows.append([start, round(seconds, 6), running, tokens, drafted, accepted])
            if len(self._rows) >= MAX_ROWS:
                self._write()

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None: ...

    def take(self, drafter: Mapping[str, float] | None, write: bool = True) -> dict[str, float]:
        """Sums since the previous call; those of the drafter have the prefix `sam_`.

        Args:
            drafter: SamProposer.stats() now; None: no speculation.
            write: whether to write the rows; False for steps that belong to no rollout, such as validation.
        """
        busy = self._cpu_before is not None
        if busy:
            self._count_cpu(busy=False)
        self._processes = None  # workers come and go between rollouts
        if busy:
            self._count_cpu(busy=True)
        engines, self._sums = self._sums.values(), {}
        sums = {
            name: max((one[name] for one in engines), default=0)
            if name.endswith("_s")
            else sum(one[name] for one in engines)
            for name in SUMS
        }
        if psutil is not None:
            sums[CPU], self._cpu = self._cpu, 0.0
        if drafter is not None:
            before, self._drafter = self._drafter, dict(drafter)
            sums |= {f"sam_{name}": value for name, value in since(before, drafter).items()}
        if write:
            self._write()
        self._rows = []
        return sums

    def _count_cpu(self, busy: bool) -> None:
        """End the current span of busy steps, if there is one, and begin the next if the engine is `busy`."""
        if psutil is None:
            return
        if self._processes is None:
            self._processes = process_tree()
        now = cpu_seconds(self._processes)
        if self._cpu_before is not None:
            self._cpu += max(now - self._cpu_before, 0.0)
        self._cpu_before = now if busy else None

    def _write(self) -> None:
        if self.path and self._rows:
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                with open(self.path, "a") as f:
                    f.writelines(json.dumps(row) + "\n" for row in self._rows)
            except OSError as e:  # a full disk must not end a training run
                logger.warning("%s is not written any more: %s", self.path, e.strerror)
                self.path = None
            self._rows = []
