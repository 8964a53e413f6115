# SPDX-License-Identifier: Apache-2.0
"""The table of `python -m sam_lab evidence`, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sam_lab import figures
from sam_lab.engine_replay.report import BINS

COLOURS = {"oldest": "#E69F00", "suffix": "#CC79A7", "ngram": "#56B4E9", "batch": "#0072B2"}
COLOURS |= {"wide": "#D55E00", "auto": "#009E73"}


def cell(interval: list[float] | None) -> str:
    if not interval:
        return "-"
    value, *ends = interval
    return f"{value:.2f} ({'-'.join(f'{end:.2f}' for end in ends) or '-'})"


def _doubt(value: float, low: float | None = None, high: float | None = None) -> str:
    if low is None or high is None:
        return "  no claim: one batch"
    return "  no claim: the interval holds 1" if low <= 1 <= high else ""


def show(result: dict[str, Any]) -> None:
    """Print each arm's gains, then what is reached of the goals."""
    for name, of in result["sets"].items():
        size = f"{of['batches']} batches of {of['prompts']} test prompts, {of['tokens']:,} tokens"
        print(f"\n{of['title']} ({name}): {size}")
        for world, title in result["worlds"].items():
            print(f"\n  {title}")
            print(f"  {'arm':14}{'pooled':>20}{'median':>20}{'worst':>8}{'tail':>20}  tokens a step, accepted")
            for row in (r for r in result["rows"] if (r["set"], r["world"]) == (name, world)):
                cells = f"{cell(row['pooled']):>20}{cell(row['median']):>20}{row['worst']:8.2f}{cell(row['tail']):>20}"
                mark = _doubt(*row["pooled"])
                best = f"  best {'of all' if 'all' in row['best_of'] else 'k and threshold'}" if row["best_of"] else ""
                accepted = f"{row['accepted']:.0%}" if row["accepted"] is not None else "-"
                print(f"  {row['arm']:14}{cells}  {row['tokens_per_step']:.2f}, {accepted}{best}{mark}")
    print("\nauto against the best fixed arm of all methods, chosen on dev prompts")
    for goal in result["goals"]:
        print(
            f"  {goal['set']:5}{goal['world']:12}{goal['best']:12}{cell(goal['over_best']):>20}  {goal['goal']:8}"
            f"worst batch against plain {goal['worst']:.2f} {goal['worst_goal']:8}"
            f"with foresight {goal['foresight']:.2f}"
        )


def draw(result: dict[str, Any], path: Path) -> None:
    """Tokens a second over plain decoding by requests running: each set a row of panels, each world a column."""
    names, worlds = list(result["sets"]), list(result["worlds"])
    size = (3.4 * len(worlds) + 0.6, 2.9 * len(names) + 0.4)
    figure, panels = figures.panels(len(names), len(worlds), size, dpi=110)
    for axes, name in zip(panels, names, strict=True):
        for panel, world in zip(axes, worlds, strict=True):
            lines = [r for r in result["running"] if (r["set"], r["world"]) == (name, world)]
            bins = [b for b in BINS if any(b in line["bins"] for line in lines)]
            for line in lines:
                points = [(bins.index(b), *line["bins"][b]) for b in bins if b in line["bins"]]
                x, y, *ends = zip(*points, strict=True)
                colour = COLOURS[line["arm"].partition(":")[0]]
                panel.plot(x, y, marker="o", markersize=3, color=colour, label=line["arm"], linewidth=1.6)
                if ends:
                    panel.fill_between(x, *ends, color=colour, alpha=0.15, linewidth=0)
            panel.axhline(1, color="#555555", linewidth=1)
            panel.set_xticks(range(len(bins)), bins)
            panel.set_title(f"{result['sets'][name]['title']}\n{result['worlds'][world]}", fontsize=9)
            panel.tick_params(labelsize=8)
            panel.legend(fontsize=7)
        axes[0].set_ylabel("tokens a second over plain", fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("requests running", fontsize=8)
    figures.save(figure, path)
