# SPDX-License-Identifier: Apache-2.0
"""Logs of verl's rollouts: metrics of a training step, and on request every answer."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from sam_core.counters import LEVELS, POSITIONS
from sam_core.engines.vllm.config import has_sam
from sam_core.engines.vllm.step_log import CPU, ENV_LOG, SUMS, StepLog, drafter_counters

logger = logging.getLogger(__name__)

ENV_ANSWERS = "SAM_ANSWER_LOG"
"""1: write every answer of a seeded rollout to `answers-<process>.jsonl` in ENV_LOG's folder; for small runs."""
DIFFERENCES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Upper bounds of the bins of log_prob_histogram; the last bin has no bound."""
META = "sam_rollout/"
"""Rollouts report in a batch's meta_info under META + replica + "/" + number of the rollout."""


async def engine_stats(engine: Any, step_log: StepLog, write: bool) -> dict[str, float]:
    """What StepLog.take returns for an AsyncLLM, including the counters of its SamProposer if it has one."""
    return step_log.take(await drafter_counters(engine) if has_sam(engine.vllm_config) else None, write)


def step_metrics(replicas: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of one training step for the trainer's log: `rollout/spec/<name>`.

    Counts and `cpu_s` are sums over replicas; other seconds and index sizes are maxima over replicas. Without
    speculation `drafts`, `drafted` and `accepted` are 0 and the drafter's own metrics are absent. Logs a warning if
    there was a drafter and tokens were generated, but no draft was verified.

    verl 0.9.1's own metrics are set as well, over all tokens of the step: `rollout/spec_accept_rate`, the accepted
    share of the drafted tokens including padding, and `rollout/spec_accept_length`, tokens per draft
    (verl/trainer/ppo/ray_trainer.py:138 averages over requests).

    Args:
        replicas: what StepLog.take returned on each replica.
    """
    rows = list(replicas)

    def total(name: str) -> float:
        return sum(row.get(name, 0) for row in rows)

    def largest(name: str) -> float:
        return max((row.get(name, 0) for row in rows), default=0)

    out = {name: largest(name) if name.endswith("_s") else total(name) for name in SUMS}
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
        labelled = ("sam_proposed_", "sam_accepted_", "sam_excluded_")
        for name in sorted({name for row in rows for name in row if name.startswith(labelled)}):
            out[name.removeprefix("sam_")] = total(name)
        for at in POSITIONS:
            if steps_from := total(f"sam_steps_from_{at}"):
                out[f"steps_from_{at}"] = steps_from
                out[f"tokens_from_{at}"] = total(f"sam_tokens_from_{at}")
        out["index_bytes"] = largest("sam_bytes_used")
        for name in ("exhausted", "evicted_groups", "evicted_history"):
            out[name] = total(f"sam_{name}")
        if out["tokens"] and not out["drafted"]:
            logger.warning(
                "speculation is configured, but no draft was verified in this training step: %d tokens were proposed, "
                "and drafting was on in %d of %d engine steps; if it was never on, run fewer requests "
                "or raise speculative_config.sam.threshold, otherwise find out why the engine excludes these requests",
                out["proposed"],
                total("sam_steps_on"),
                total("sam_steps"),
            )
    metrics = {f"rollout/spec/{name}": value for name, value in out.items()}
    if out["drafts"] and out["drafted"]:
        metrics["rollout/spec_accept_rate"] = out["accepted"] / out["drafted"]
        metrics["rollout/spec_accept_length"] = 1 + out["accepted"] / out["drafts"]
    return metrics


def add_taken(sums: dict[str, float], taken: Mapping[str, float]) -> None:
    """Add the result of StepLog.take to `sums` of earlier calls; index sizes are replaced."""
    for name, value in taken.items():
        sums[name] = value if name.removeprefix("sam_") in LEVELS else sums.get(name, 0) + value


def log_prob_histogram(differences: Any) -> dict[str, int]:
    """Metrics of a training step: a histogram of the tokens' log-probability differences, rollout to training.

    `rollout_corr/log_prob_diff/<bound>/total` counts the tokens whose difference is at most this bound and above the
    previous one; the last bound is `inf`. If a step has several updates, verl adds up metrics named total and averages
    the others.

    Args:
        differences: a tensor with one difference per token.
    """
    import torch

    classes = torch.bucketize(differences.detach().abs().float(), torch.tensor(DIFFERENCES, device=differences.device))
    counts = torch.bincount(classes, minlength=len(DIFFERENCES) + 1).tolist()
    bounds = (*DIFFERENCES, float("inf"))
    return {f"rollout_corr/log_prob_diff/{bound:g}/total": n for bound, n in zip(bounds, counts, strict=True)}


def rollout_meta(replica: int, rollout: int, taken: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """An entry for a batch's meta_info that carries what StepLog.take returned after a replica's rollout.

    Its key is unique to the replica and the rollout, so that batches of several merge without conflict.
    """
    return {f"{META}{replica}/{rollout}": taken}


def rollout_metrics(meta_info: Mapping[str, Any]) -> dict[str, float]:
    """step_metrics of the rollouts in a training batch; empty if none reported.

    A replica's counts and seconds are summed over its rollouts; its index sizes are those after the last.
    """
    replicas: dict[str, dict[str, float]] = {}
    for key, taken in meta_info.items():
        if key.startswith(META):
            add_taken(replicas.setdefault(key.split("/")[1], {}), taken)
    return step_metrics(replicas.values()) if replicas else {}


class Unchanged:
    """The share of a validation's answers that equal those of the previous one."""

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}

    def __call__(self, answers: Mapping[Hashable, str]) -> dict[str, float]:
        """`val/unchanged`: the share of equal texts among the places that both validations have.

        Empty if there are none, as in the first validation of a process.

        Args:
            answers: texts by their places in the validation.
        """
        last, self._last = self._last, {place: hash(text) for place, text in answers.items()}
        equal = [last[place] == text for place, text in self._last.items() if place in last]
        return {"val/unchanged": sum(equal) / len(equal)} if equal else {}


def log_answer(
    place: tuple[int, int, int], prompt: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float] | None
) -> None:
    """Append a row to this process's log of answers, if ENV_ANSWERS asks for one.

    A row holds the three numbers of `place`, a hash of the prompt's token ids, the answer's token ids and their
    log-probabilities, or null.

    Args:
        place: training step, number of the prompt in the step, number of the answer to the prompt.
        prompt: token ids.
        tokens: token ids of the answer.
        log_probs: one for each of `tokens`, or None.
    """
    folder = os.environ.get(ENV_LOG)
    if not folder or os.environ.get(ENV_ANSWERS) != "1":
        return
    prompt_hash = hashlib.blake2b(json.dumps(list(prompt)).encode(), digest_size=8).hexdigest()
    row = [*place, prompt_hash, list(tokens), log_probs and [round(value, 7) for value in log_probs]]
    path = os.path.join(folder, f"answers-{os.getpid()}.jsonl")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "a") as f:
            f.write(json.dumps(row, separators=(",", ":")) + "\n")
    except OSError as e:  # a full disk must not end a training run
        logger.warning("%s lacks an answer: %s", path, e.strerror)
