# SPDX-License-Identifier: Apache-2.0
"""The figure of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sam_lab import figures

COLOURS = {"off": "#555555", "batch": "#E69F00", "best": "#0072B2", "auto": "#009E73"}


def draw(path: Path, result: dict[str, Any], title: str) -> None:
    """Requests running on the slowest engine, and speed-up against threshold and k."""
    from matplotlib import colormaps

    figure, ((left, right),) = figures.panels(1, 2, (12, 4.4))
    current, best = result["own"], result["best"]
    names = {"off": "off", "batch": f"batch, threshold {current[0]}, k = {current[1]}", "auto": "auto"}
    if best != current:
        names["best"] = f"batch, threshold {best[0]}, k = {best[1]} (best)"
    for name, label in names.items():
        trace = result["traces"][name]
        ends = np.array([*trace.start, trace.total]) / 60
        left.step(ends, [*trace.max_running(), 0], where="post", label=label, color=COLOURS[name], linewidth=1.5)
    left.axhline(current[0], color="#999999", linestyle=":", linewidth=1)
    small = {"textcoords": "offset points", "fontsize": 8, "color": "#555555"}
    left.annotate(f"threshold {current[0]}", (0, current[0]), xytext=(4, 3), **small)
    left.set_yscale("symlog", base=2, linthresh=1)
    top = 1.1 * max(result["traces"]["off"].max_running())
    left.set_yticks([1 << i for i in range(9) if 1 << i <= top])
    left.yaxis.set_major_formatter("{x:.0f}")
    left.set(xlabel="minutes of a round", ylabel="requests running", ylim=(0, None))
    left.set_title(f"{title}: the slowest engine")
    left.legend(fontsize=8, loc="lower left")
    ks = sorted({point["k"] for point in result["grid"]})
    for i, k in enumerate(ks):
        points = [(p["threshold"], p["gain"]) for p in result["grid"] if p["k"] == k]
        shade = colormaps["viridis"](0.9 * i / max(1, len(ks) - 1))
        right.plot(*zip(*points, strict=True), "o-", markersize=4, label=f"k = {k}", color=shade)
    right.axhline(result["auto_gain"], color=COLOURS["auto"], linestyle="--", linewidth=1.2, label="auto")
    right.axhline(1, color="#555555", linewidth=1)
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:.0f}")
    right.set(xlabel="threshold of batch", ylabel="speed of the round against off")
    right.set_title("Where to switch, how much to draft")
    right.legend(fontsize=8, ncols=2)
    right.grid(alpha=0.3)
    figures.save(figure, path)
