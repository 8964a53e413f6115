# SPDX-License-Identifier: Apache-2.0
"""Check the planner against an engine replay: predict each batch's time from the cost of the other batches."""

from __future__ import annotations

import argparse
import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.options import Options

from sam_lab.arms import parse
from sam_lab.cli import LabError
from sam_lab.cost import Cost, fitted, read_seconds
from sam_lab.engine_replay.arms import fixed_switch
from sam_lab.engine_replay.command import choose
from sam_lab.plan.acceptance import KS, Acceptance, recorded
from sam_lab.plan.simulate import Engines, Policy, Trace
from sam_lab.recordings import Answer

Batch = Sequence[tuple[list[int], list[int]]]
"""Prompts and answers."""
COSTS = ("plain", "off", "batch", "auto")
"""Arms to whose steps the cost is fitted, if they were run."""

CACHED = 128
"""Tokens of a block of the prefix cache, by vLLM's default on a CPU."""


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Settings and runs of an engine replay.

    path: its steps.json (next to engine-replay.json), or the runs.jsonl of one that has not ended. Raises LabError or
    OSError.
    """
    try:
        if path.suffix == ".jsonl":
            settings, *runs = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            runs = json.loads(path.read_text())
            settings = json.loads(path.with_name("engine-replay.json").read_text())["settings"]
        runs = [run for run in runs if run["batch"] >= 0]
        settings["batches"] = 1 + max(run["batch"] for run in runs)
        Path(settings["answers"]), settings["learn"], runs[0]["steps"][0]["s"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        what = "the steps.json or runs.jsonl of an engine-replay that ended a run"
        raise LabError(f"{path} is not {what} ({error!r})") from None
    return settings, runs


def tail_contexts(answers: Sequence[tuple[int, int]], slots: int) -> np.ndarray:
    """[slots + 1], mean thousands of tokens per request while n requests still run, from prompts and answers."""
    longest = sorted(answers, key=lambda pair: pair[1])
    contexts = np.zeros(slots + 1)
    for n in range(1, slots + 1):
        last = longest[-min(n, len(longest)) :]
        contexts[n] = np.mean([prompt + last[0][1] for prompt, _ in last]) / 1000
    return contexts


def check(path: Path) -> dict[str, Any]:
    """Predicted and measured seconds of every arm and batch that the planner can model.

    The cost of a step comes from the other batches (from its own if there are no others), lengths and acceptance (by
    sam_lab.replay) from the recorded answers.
    """
    settings, runs = read(path)
    batches = choose(settings["answers"], argparse.Namespace(**{"part": None} | settings))[settings["learn"] :]
    used = [run for run in runs if run["arm"] in COSTS]
    numbers = sorted({run["batch"] for run in runs})
    others = {number: [run for run in used if run["batch"] != number] for number in numbers}
    costs = {number: _cost(others[number] or used, batches, number) for number in numbers}
    acceptances = {number: _acceptance(batches[number]) for number in numbers}
    slots = settings["max_seqs"]
    rows = []
    for run in runs:
        number, cost = run["batch"], costs[run["batch"]]
        policy = _policy(run["arm"], acceptances[number], slots, cost, batches[number])
        if policy is None:
            continue
        predicted = _predict(batches[number], slots, cost, policy)
        measured = sum(step["s"] for step in run["steps"])
        in_tail = sum(step["s"] for step in run["steps"] if step["running"] <= settings["tail"])
        rows.append(
            {
                "arm": run["arm"],
                "batch": run["batch"],
                "fitted": not others[number],
                "measured": measured,
                "predicted": predicted.total,
                "error": predicted.total / measured - 1,
                "measured_tail": in_tail,
                "predicted_tail": predicted.tail(settings["tail"]),
                "steps": len(run["steps"]),
                "predicted_steps": sum(predicted.steps),
            }
        )

    return {"answers": str(settings["answers"]), "fitted_to": sorted({run["arm"] for run in used}), "rows": rows}


def _cost(runs: Sequence[dict[str, Any]], batches: Sequence[Batch], number: int) -> Cost:
    """The cost fitted to the runs; that of reading prompts depends on the number and the positions of their tokens."""
    cost = fitted([step for run in runs for step in run["steps"]])
    read = np.array([_read(batches[run["batch"]]) for run in runs])
    each, longer = np.linalg.lstsq(read, [read_seconds(cost, run["steps"]) for run in runs], rcond=None)[0]
    if min(each, longer) < 0:
        return cost
    tokens, before = _read(batches[number])
    return replace(cost, prefill=(each * tokens + longer * before) / tokens)


def _cached(batch: Batch) -> npt.NDArray[np.int64]:
    """[requests], tokens of the prompt that an earlier request has read."""
    first = {tuple(prompt): i for i, (prompt, _) in reversed(list(enumerate(batch)))}
    return np.array([0 if first[tuple(p)] == i else len(p) // CACHED * CACHED for i, (p, _) in enumerate(batch)])


def _read(batch: Batch) -> tuple[float, float]:
    """Prompt tokens that are read, and the sum of their positions in thousands."""
    prompts, cached = np.array([len(prompt) for prompt, _ in batch]), _cached(batch)
    return float((prompts - cached).sum()), float((prompts**2 - cached**2).sum() / 2000)


def _predict(batch: Batch, slots: int, cost: Cost, policy: Policy) -> Trace:
    prompts, lengths = np.array([(len(p), len(a)) for p, a in batch]).T
    return Engines([prompts], [lengths], slots, cached=[_cached(batch)]).run(cost, policy)


def _acceptance(batch: Batch) -> Acceptance:
    """Acceptance on a batch's answers, with the default rule and the siblings in lock-step."""
    answers = [Answer(array("i", p), array("i", a), str(p), str(p), None) for p, a in batch]
    return recorded(answers, "group", {"min_prob": Options.min_prob})


def _policy(name: str, acceptance: Acceptance, slots: int, cost: Cost, batch: Batch) -> Policy | None:
    arm = parse(name)
    if arm.asynchronous:
        return None
    if arm.method in ("plain", "off"):
        return Policy.off(slots)
    if arm.method == "auto":
        return acceptance.auto(slots, cost, tail_contexts([(len(p), len(a)) for p, a in batch], slots))
    if arm.method == "batch":
        k, threshold = fixed_switch(arm)
        if k in KS:
            return acceptance.batch(slots, min(threshold, slots), k)
    return None
