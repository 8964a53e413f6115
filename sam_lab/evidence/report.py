# SPDX-License-Identifier: Apache-2.0
"""The table of `python -m sam_lab evidence`, and its picture."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from sam_lab import figures
from sam_lab.arms import parse
from sam_lab.engine_replay.report import BINS

COLOURS = {"oldest": "#E69F00", "suffix": "#CC79A7", "ngram": "#56B4E9", "batch": "#0072B2", "auto": "#009E73"}
COLOURS |= {"model": "#D55E00", "length": "#0072B2", "suffix-device": "#7F3C8D"}


def cell(interval: list[float]) -> str:
    value, *ends = interval
    return f"{value:.2f} ({'-'.join(f'{end:.2f}' for end in ends) or '-'})"


def _doubt(value: float, low: float | None = None, high: float | None = None) -> str:
    if low is None or high is None:
        return "  no claim: one task"
    return "  no claim: the interval holds 1" if low <= 1 <= high else ""


def show(result: dict[str, Any]) -> None:
    """Print the gains of each arm over plain decoding, and of `auto` over each arm."""
    rows = result["rows"]
    for (name, device, running), of_case in itertools.groupby(rows, lambda r: (r["set"], r["device"], r["running"])):
        of = result["sets"][name]
        size = f"{of['answers']:,} answers to {of['prompts']} test prompts, {of['tokens']:,} tokens"
        print(f"\n{of['title']} ({name}): {size}; {running} at once; {result['devices'][device]}")
        print(f"  {'arm':46}{'gain':>18}{'worst batch':>13}{'tail':>6}{'auto over it':>18}  tokens per step, accepted")
        for row in of_case:
            tail = f"{row['tail']:6.2f}" if row["tail"] else f"{'-':>6}"
            cells = f"{cell(row['pooled']):>18}{row['worst']:13.2f}{tail}{cell(row['auto_over']):>18}"
            accepted = f"{row['accepted']:.0%}" if row["accepted"] is not None else "-"
            print(f"  {row['arm']:46}{cells}  {row['tokens_per_step']:.2f}, {accepted}{_doubt(*row['pooled'])}")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw tokens per second over plain decoding by running requests; rows of panels are sets, columns are devices."""
    names, devices = list(result["sets"]), list(result["devices"])
    size = (3.4 * len(devices) + 0.6, 2.9 * len(names) + 0.4)
    figure, panels = figures.panels(len(names), len(devices), size, dpi=110)
    for axes, name in zip(panels, names, strict=True):
        for panel, device in zip(axes, devices, strict=True):
            lines = [r for r in result["by_running"] if (r["set"], r["device"]) == (name, device)]
            bins = [b for b in BINS if any(b in line["bins"] for line in lines)]
            for line in lines:
                points = [(bins.index(b), line["bins"][b]) for b in bins if b in line["bins"]]
                method = parse(line["arm"]).method
                panel.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    markersize=3,
                    color=COLOURS[method.removeprefix("model+")],
                    label=method,
                    linewidth=1.6,
                )
            panel.axhline(1, color="#555555", linewidth=1)
            panel.set_xticks(range(len(bins)), bins)
            panel.set_title(f"{result['sets'][name]['title']}\n{result['devices'][device]}", fontsize=9)
            panel.tick_params(labelsize=8)
            panel.legend(fontsize=7)
        axes[0].set_ylabel("tokens per second over plain", fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("requests running", fontsize=8)
    figures.save(figure, path)
