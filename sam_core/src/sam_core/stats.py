# SPDX-License-Identifier: Apache-2.0
"""What a rollout did: engine steps as the front end sees them, with or without speculation, and their sums per training step."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import psutil  # of every engine's environment
except ImportError:
    psutil = None

logger = logging.getLogger(__name__)

ENV_THRESHOLD = "SAM_TAIL_THRESHOLD"
"""Running requests up to which a step counts as the tail of a rollout; default 8."""
ENV_LOG = "SAM_STEP_LOG"
"""Folder that receives `engine-<replica>.jsonl`, one row an engine step; not written where it is unset."""
ENV_ANSWERS = "SAM_ANSWER_LOG"
"""1: every answer of a seeded rollout goes to `answers-<process>.jsonl` in ENV_LOG's folder; meant for small runs."""

ROWS_KEPT = 65_536
"""Rows held until somebody takes them; then they are written all the same."""
META = "sam_rollout/"
"""Start of the names under which rollouts report through a batch's meta_info: META + replica + "/" + round."""
LEVELS = ("requests", "bytes_used")
"""Counters of a drafter that say what is, not what was done."""
POSITIONS = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Positions in an answer at which the bins of Positions begin; each ends where the next one begins."""
SUMS = ("decode_steps", "request_steps", "tokens", "drafted", "accepted", "busy_s", "tail_s", "tail_tokens")
CPU = "cpu_s"
"""CPU seconds of the front end and the processes that it started, in the spans in which requests ran."""


class Positions:
    """Steps of requests that had a draft, and the tokens they gained in them, by their position in the answer.

    Their quotient is the mean acceptance length at that position, the token that the model adds included. A draft that
    the engine dropped, because it preempted the request for instance, counts as one of which nothing was accepted.
    """

    KEPT = 256  # steps that are counted together, as each count costs as much as many

    def __init__(self) -> None:
        self._steps, self._tokens = np.zeros((2, len(POSITIONS)), np.int64)
        self._added: list[tuple[npt.ArrayLike, npt.ArrayLike]] = []

    def add(self, positions: npt.ArrayLike, tokens: npt.ArrayLike) -> None:
        """Requests that had a draft behind `positions` [N] tokens of their answers gained `tokens` [N] in a step."""
        self._added.append((positions, tokens))
        if len(self._added) >= self.KEPT:
            self._count()

    def _count(self) -> None:
        if self._added:
            positions, tokens = map(np.concatenate, zip(*self._added, strict=True))
            self._added = []
            at = np.searchsorted(POSITIONS, positions, side="right") - 1
            self._steps += np.bincount(at, minlength=len(POSITIONS))
            self._tokens += np.bincount(at, tokens, len(POSITIONS)).astype(np.int64)

    def counts(self) -> dict[str, int]:
        """Flat: steps_from_<position> and tokens_from_<position> for each of POSITIONS."""
        self._count()
        return {
            **{f"steps_from_{at}": n for at, n in zip(POSITIONS, self._steps.tolist(), strict=True)},
            **{f"tokens_from_{at}": n for at, n in zip(POSITIONS, self._tokens.tolist(), strict=True)},
        }


def process_tree() -> list[Any]:
    """This process and all that it started, theirs included: of an engine on this host its core and its workers."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds(processes: Iterable[Any]) -> float:
    """CPU seconds, user and system, that psutil's processes have taken so far; one that ended counts nothing."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


class StepLog:
    """A stat logger of vLLM: `record` is called once an engine step, in every arm of a comparison alike.

    It has the methods of vLLM's StatLoggerBase (v1/metrics/loggers.py) and stands in for its own factory, so that it is
    passed as `stat_loggers=[step_log]`.

    A step's seconds are the time since the step before; a step after idleness has none. Its running requests are those
    that got a token in it, so tokens / request_steps is 1 without speculation.

    cpu_s is taken at the ends of each span of busy steps alone, so a step costs nothing more for it. Waiting is in it where
    the engine's processes poll for each other, as vLLM's do.
    """

    def __init__(self, replica: int = 0) -> None:
        self.replica = replica
        self.threshold = int(os.environ.get(ENV_THRESHOLD, "8"))
        folder = os.environ.get(ENV_LOG)
        self.path = os.path.join(folder, f"engine-{replica}.jsonl") if folder else None
        self._last: dict[int, float | None] = {}
        self._processes: list[Any] | None = None
        self._cpu_before: float | None = None
        self._rows: list[list[float]] = []
        self._sums: dict[str, float] = self._zero()
        self._drafter: dict[str, float] = {}

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> StepLog:
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int | None = None
    ) -> None:
        """Called by vLLM; 0.11 has no `mm_cache_stats` and passes the engine's index in its place."""
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
        running = tokens = drafted = accepted = 0
        if iteration_stats is not None:
            running = len(iteration_stats.time_to_first_tokens_iter) + len(iteration_stats.inter_token_latencies_iter)
            tokens = iteration_stats.num_generation_tokens
        if (spec := scheduler_stats.spec_decoding_stats) is not None:
            drafted, accepted = spec.num_draft_tokens, spec.num_accepted_tokens
        tail = 0 < running <= self.threshold
        for name, value in zip(
            SUMS,
            (running > 0, running, tokens, drafted, accepted, seconds, seconds * tail, tokens * tail),
            strict=True,
        ):
            self._sums[name] += value
        if self.path:
            start = round(time.time() - seconds, 6)
            self._rows.append([start, round(seconds, 6), running, tokens, drafted, accepted])
            if len(self._rows) >= ROWS_KEPT:
                self._write()

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None: ...

    def take(self, drafter: Mapping[str, float] | None, write: bool = True) -> dict[str, float]:
        """Sums since the last call; `drafter` is SamProposer.stats() now, or None without speculation.

        write=False drops the rows: for steps that belong to no rollout, such as validation.
        """
        busy = self._cpu_before is not None
        if busy:
            self._count_cpu(busy=False)
        self._processes = None  # looked up again: workers come and go between rollouts
        if busy:
            self._count_cpu(busy=True)
        taken = self._sums
        self._sums = self._zero()
        if drafter is not None:
            before, self._drafter = self._drafter, dict(drafter)
            taken = taken | {f"sam_{n}": v if n in LEVELS else v - before.get(n, 0) for n, v in drafter.items()}
        if write:
            self._write()
        self._rows = []
        return taken

    @staticmethod
    def _zero() -> dict[str, float]:
        return dict.fromkeys(SUMS if psutil is None else (*SUMS, CPU), 0)

    def _count_cpu(self, busy: bool) -> None:
        """Ends a span of busy steps, if one has begun, and begins the next if the engine is `busy`."""
        if psutil is None:
            return
        if self._processes is None:
            self._processes = process_tree()
        now = cpu_seconds(self._processes)
        if self._cpu_before is not None:
            self._sums[CPU] += max(now - self._cpu_before, 0.0)
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


def log_answer(
    place: tuple[int, int, int], prompt: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float] | None
) -> None:
    """Append a row to this process's log of answers, where ENV_ANSWERS asks for one.

    place: training step, number of the prompt in it, number of the answer to it. A row is these three, a hash of the
    prompt's token ids, the answer's token ids and their log-probabilities, or null.
    """
    folder = os.environ.get(ENV_LOG)
    if not folder or os.environ.get(ENV_ANSWERS) != "1":
        return
    asked = hashlib.blake2b(json.dumps(list(prompt)).encode(), digest_size=8).hexdigest()
    row = [*place, asked, list(tokens), log_probs and [round(value, 7) for value in log_probs]]
    path = os.path.join(folder, f"answers-{os.getpid()}.jsonl")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "a") as f:
            f.write(json.dumps(row, separators=(",", ":")) + "\n")
    except OSError as e:  # a full disk must not end a training run
        logger.warning("%s lacks an answer: %s", path, e.strerror)


def step_metrics(replicas: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of one training step for the trainer's log, from what StepLog.take returned on each replica.

    Counts are sums over replicas; seconds and index sizes are those of the replica with most of them. Without
    speculation `drafted`, `accepted` are 0 and the drafter's own metrics are absent. A step that had a drafter and
    verified no draft is warned of.
    """
    rows = list(replicas)

    def total(name: str) -> float:
        return sum(row.get(name, 0) for row in rows)

    def largest(name: str) -> float:
        return max((row.get(name, 0) for row in rows), default=0)

    out = {name: total(name) for name in SUMS if not name.endswith("_s")}
    out |= {name: largest(name) for name in SUMS if name.endswith("_s")}
    if any(CPU in row for row in rows):
        out[CPU] = total(CPU)
    out["tokens_per_step"] = out["tokens"] / max(out["request_steps"], 1)
    if any("sam_steps" in row for row in rows):
        steps = max(total("sam_steps"), 1)
        out["padding"], out["padding_accepted"] = total("sam_padding"), total("sam_padding_accepted")
        drafted, accepted = out["drafted"] - out["padding"], out["accepted"] - out["padding_accepted"]
        out["acceptance_rate"] = accepted / max(drafted, 1)
        out["switch_on_share"] = total("sam_steps_on") / steps
        out["switch_transitions"] = total("sam_transitions")
        out["draft_ms"] = 1e3 * total("sam_draft_s") / steps
        out["proposed"] = total("sam_proposed")
        by_source = ("sam_proposed_", "sam_accepted_")
        for name in sorted({name for row in rows for name in row if name.startswith(by_source)}):
            out[name.removeprefix("sam_")] = total(name)
        for name in sorted({name for row in rows for name in row if name.startswith("sam_excluded_")}):
            out[name.removeprefix("sam_")] = total(name)
        for at in POSITIONS:
            if steps_from := total(f"sam_steps_from_{at}"):
                out[f"steps_from_{at}"] = steps_from
                out[f"tokens_from_{at}"] = total(f"sam_tokens_from_{at}")
        out["index_bytes"] = largest("sam_bytes_used")
        for name in ("exhausted", "evicted_groups", "evicted_history"):
            out[name] = total(f"sam_{name}")
        if not out["drafted"]:
            logger.warning(
                "speculation was asked for, but no draft was verified in this training step: %d tokens were proposed, and "
                "drafting was on in %d of %d engine steps; lower the running requests or raise speculative_config.sam."
                "threshold if it was never on, else see why the engine excludes these requests",
                out["proposed"],
                total("sam_steps_on"),
                total("sam_steps"),
            )
    return {f"rollout/spec/{name}": value for name, value in out.items()}


def rollout_meta(replica: int, rollout: int, taken: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """What StepLog.take returned after a replica's rollout number `rollout`, as an entry for its batch's meta_info.

    No other entry has its name, so that batches of several replicas and rollouts merge as they are.
    """
    return {f"{META}{replica}/{rollout}": taken}


def rollout_metrics(meta_info: Mapping[str, Any]) -> dict[str, float]:
    """step_metrics of the rollouts that a training batch was made of; empty where none reported.

    A replica's counts and seconds are summed over its rollouts; its index sizes are those after the last.
    """
    replicas: dict[str, dict[str, float]] = {}
    for key, taken in meta_info.items():
        if key.startswith(META):
            sums = replicas.setdefault(key.split("/")[1], {})
            for name, value in taken.items():
                sums[name] = value if name.removeprefix("sam_") in LEVELS else sums.get(name, 0) + value
    return step_metrics(replicas.values()) if replicas else {}
