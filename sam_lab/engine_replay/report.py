# SPDX-License-Identifier: Apache-2.0
"""Compare the arms: table, JSON and picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from sam_core.files import write_json

from sam_lab import figures
from sam_lab.arms import parse

BINS = {"1": (1, 1), "2-3": (2, 3), "4-5": (4, 5), "6-8": (6, 8), "9-16": (9, 16), "17-32": (17, 32), "33+": (33, inf)}
"""Ranges of running requests, from and to, by label."""
STEP_BINS = {**BINS, "33-64": (33, 64), "65-128": (65, 128), "129+": (129, inf)}
del STEP_BINS["33+"]


def report(runs: list[dict[str, Any]], tail: int, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Print the table; write it, the steps and a picture to `out`.

    Returns the content of engine-replay.json; the others are steps.json and engine-replay.png.
    """
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    base = settings.get("against", "plain")
    plain = {run["batch"]: run for run in runs if run["arm"] == base}
    result: dict[str, Any] = {
        "settings": settings,
        "arms": {},
        "wrong": [(run["arm"], run["batch"], i) for run in runs for i in run["wrong"]],
    }
    for arm in arms:
        runs_of_arm = [run for run in runs if run["arm"] == arm]
        steps = [step for run in runs_of_arm for step in run["steps"]]
        decoding = [s for s in steps if not s["prefill"]]
        parts = {
            "decode": lambda s: not s["prefill"],
            "rollout": lambda s: True,
            "tail": lambda s: not s["prefill"] and s["running"] <= tail,
        }
        gains = {name: _gains(runs_of_arm, plain, counts) for name, counts in parts.items()}
        drafted = sum(s["drafted"] for s in decoding)
        result["arms"][arm] = {
            "s": _time(steps),
            "decode_s": _time(decoding),
            **{f"{name}_gain_median": statistics.median(values) for name, values in gains.items() if values},
            **{f"{name}_gain_worst": min(values) for name, values in gains.items() if values},
            "gain_total": sum(_time(run["steps"]) for run in plain.values()) / _time(steps),
            "engine_steps": len(steps),
            "tokens_per_step": sum(s["emitted"] for s in decoding) / max(1, sum(s["running"] for s in decoding)),
            "drafted": drafted,
            "accepted": sum(s["emitted"] - s["gaining"] for s in decoding),
            "tokens_per_s": {name: _rate(decoding, *bin_) for name, bin_ in BINS.items()},
            "steps_by_running": {
                name: _typical(inside)
                for name, (first, last) in STEP_BINS.items()
                if (inside := [s for s in decoding if first <= s["running"] <= last])
            },
        }
    for values in result["arms"].values():
        rates = result["arms"][base]["tokens_per_s"]
        values["gain_by_running"] = {
            name: rate / rates[name] if rate and rates[name] else None for name, rate in values["tokens_per_s"].items()
        }
    drafting = [arm for arm in arms if parse(arm).method not in ("plain", "off")]
    result["silent"] = [arm for arm in drafting if not result["arms"][arm]["drafted"]]
    _print(result, base)
    write_json(out / "engine-replay.json", result)
    write_json(out / "steps.json", runs)
    if figures.can_draw():
        _draw(runs, result, base, tail, out)
    print(f"results: {out}")
    return result


def _gains(
    runs_of_arm: list[dict[str, Any]], plain: dict[int, dict[str, Any]], counts: Callable[[dict[str, Any]], bool]
) -> list[float]:
    """For each batch with steps that count, the time of plain decoding over this arm's time in these steps."""
    gains = []
    for run in runs_of_arm:
        ours, theirs = ([s for s in r["steps"] if counts(s)] for r in (run, plain[run["batch"]]))
        if ours and theirs:
            gains.append(_time(theirs) / _time(ours))
    return gains


def _time(steps: list[dict[str, Any]]) -> float:
    return sum(s["s"] for s in steps)


def _typical(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Number of steps, median milliseconds, mean rows, and mean tokens per request that got any."""
    return {
        "steps": len(steps),
        "ms": 1000 * statistics.median(s["s"] for s in steps),
        "rows": statistics.mean(s["rows"] for s in steps),
        "tokens": sum(s["emitted"] for s in steps) / max(1, sum(s["gaining"] for s in steps)),
    }


def _rate(steps: list[dict[str, Any]], first: int, last: float) -> float | None:
    inside = [s for s in steps if first <= s["running"] <= last]
    return sum(s["emitted"] for s in inside) / _time(inside) if inside else None


def _print(result: dict[str, Any], base: str) -> None:
    print("                      rollout         decoding            tail    tokens  accepted")
    print("                 gain   worst     gain   worst    gain   worst    a step")
    for arm, v in result["arms"].items():
        share = f"{100 * v['accepted'] / v['drafted']:.1f} %" if v["drafted"] else "-"
        row = f"{arm:12}"
        for part, width in (("rollout", 9), ("decode", 9), ("tail", 8)):
            for which in ("median", "worst"):
                gain = v.get(f"{part}_gain_{which}")
                row += f"{'-' if gain is None else f'{gain:.3f}':>{width if which == 'median' else 8}}"
        print(f"{row}{v['tokens_per_step']:10.3f}{share:>10}")
    names = [name for name, rate in result["arms"][base]["tokens_per_s"].items() if rate]
    print(f"\ngain against {base}, by requests running\n" + " " * 12 + "".join(f"{name:>8}" for name in names))
    for arm, v in result["arms"].items():
        gains = (v["gain_by_running"][name] for name in names)
        print(f"{arm:12}" + "".join(f"{gain:8.3f}" if gain else f"{'-':>8}" for gain in gains))
    print("\nms of a step that reads no prompt: median (mean rows; tokens per request), by requests running")
    print(" " * 8 + "".join(f"{arm:>22}" for arm in result["arms"]))
    for name in STEP_BINS:
        typical = [v["steps_by_running"].get(name) for v in result["arms"].values()]
        if any(typical):
            cells = (f"{t['ms']:.2f} ({t['rows']:.0f}; {t['tokens']:.2f})" if t else "-" for t in typical)
            print(f"{name:8}" + "".join(f"{cell:>22}" for cell in cells))
    for arm, batch, request in result["wrong"][:5]:
        print(f"WRONG: {arm}, batch {batch}: request {request} did not give the recorded answer")
    for arm in result["silent"]:
        print(f"SILENT: {arm} drafted nothing, so its figures say nothing about speculation")


def _draw(runs: list[dict[str, Any]], result: dict[str, Any], base: str, tail: int, out: Path) -> None:
    arms = list(result["arms"])
    palette = ("#555555", "#999999", "#E69F00", "#CC79A7", "#56B4E9", "#009E73", "#D55E00", "#0072B2")
    colours = {arm: palette[i % len(palette)] for i, arm in enumerate(arms)}
    figure, ((left, right),) = figures.panels(1, 2, (12, 4.2), dpi=130)
    for arm in arms:
        time, at, running = 0.0, [], []
        for step in next(run for run in runs if run["arm"] == arm)["steps"]:
            time += step["s"]
            at.append(time)
            running.append(step["running"])
        left.step(at, running, label=arm, color=colours[arm], linewidth=1.6)
    left.axhline(tail, color="#999999", linestyle=":", linewidth=1)
    left.annotate(f"tail: at most {tail}", (0, tail), xytext=(4, 3), textcoords="offset points", fontsize=9)
    left.set(xlabel="seconds", ylabel="requests running", title="First batch")
    left.legend()
    names = [name for name, rate in result["arms"][base]["tokens_per_s"].items() if rate]
    width = 0.8 / max(1, len(arms) - 1)
    for i, arm in enumerate(arm for arm in arms if arm != base):
        gains = [result["arms"][arm]["gain_by_running"][name] or 0 for name in names]
        right.bar([x + i * width for x in range(len(names))], gains, width, label=arm, color=colours[arm])
    right.axhline(1, color="#555555", linewidth=1)
    right.set_xticks([x + width * (len(arms) - 2) / 2 for x in range(len(names))], names)
    right.set(xlabel="requests running", ylabel=f"tokens per second against {base}", title="All batches")
    right.legend()
    figures.save(figure, out / "engine-replay.png")
