# SPDX-License-Identifier: Apache-2.0
"""Figures of those tables that are curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sam_lab import figures
from sam_lab.papers import Row
from sam_lab.papers.replayed import COMMON, SIZES

COLOURS = ("#30638e", "#d1495b", "#edae49", "#66a182", "#7a7a7a", "#8d5b8c", "#c77b30", "#2e4057", "#9fb8ad")


def draw(folder: Path, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write a PNG for each figure whose table has rows; return the paths."""
    written = []
    for name, draw_on in FIGURES.items():
        rows = tables.get(name)
        if not rows:
            continue
        canvas, (pair,) = figures.panels(1, 2, (11, 4.2), dpi=100)
        draw_on(pair, rows)
        for axes in pair:
            axes.grid(alpha=0.3)
        handles, labels = pair[0].get_legend_handles_labels()
        if handles:
            canvas.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
        figures.save(canvas, folder / f"{name}.png")
        written.append(folder / f"{name}.png")
    return written


def _by(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """Rows by a column's value, in order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _matches(pair: Any, rows: Sequence[Row]) -> None:
    rows = [row for row in rows if row["match"] not in COMMON]
    for axes, name in zip(pair, ("SD-T", "REST"), strict=True):
        for colour, (recording, rows_of) in zip(COLOURS, _by(rows, "recording").items(), strict=False):
            known = [row for row in rows_of if row["match"] != "none" and row[f"{name}: share of the steps"] > 0.005]
            places = [[row["match"] for row in rows_of].index(row["match"]) for row in known]
            axes.plot(places, [row[f"{name}: accepted"] for row in known], "o-", color=colour, ms=4, label=recording)
        labels = [row["match"].replace(" or more", "+") for row in next(iter(_by(rows, "recording").values()))]
        axes.set_xticks(range(1, len(labels)), labels[1:])
        axes.set(xlabel="length of the match, tokens", ylabel="tokens accepted a step", yscale="log", title=name)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_yticks([0.5, 1, 2, 4, 8, 16, 32])
        axes.minorticks_off()


def _sizes(pair: Any, rows: Sequence[Row]) -> None:
    for colour, (recording, rows_of) in zip(COLOURS, _by(rows, "recording").items(), strict=False):
        sizes = [row["earlier outputs"] for row in rows_of]
        for axes, column in zip(pair, ("tokens a step", "accepted share"), strict=True):
            axes.plot(sizes, [row[f"SD-T: {column}"] for row in rows_of], "o-", color=colour, ms=4, label=recording)
            axes.plot(sizes, [row[f"REST: {column}"] for row in rows_of], "s:", color=colour, ms=4)
            axes.set(xscale="log", xlabel="earlier outputs known", ylabel=column)
            axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
            axes.minorticks_off()
    for style, label in (("ko-", "SD-T"), ("ks:", "REST")):
        pair[0].plot([], [], style, ms=4, label=label)
    pair[0].set_title("tokens a step")
    pair[1].set_title("accepted share of the drafted tokens")


def _limits(pair: Any, rows: Sequence[Row]) -> None:
    for colour, (recording, rows_of) in zip(COLOURS, _by(rows, "recording").items(), strict=False):
        for start, style in (("constant", "o-"), ("", "s--")):
            series = [r for r in rows_of if r["MAX_SPEC"].startswith("constant") == bool(start)]
            tokens, label = [row["tokens a step"] for row in series], recording if start else None
            for axes, column in zip(pair, ("drafted", "accepted share"), strict=True):
                axes.plot([row[column] for row in series], tokens, style, color=colour, ms=4, label=label)
                axes.set_ylabel("tokens a step")
    for style, label in (("ko-", "constant, 2 to 16"), ("ks--", "alpha p, alpha 1 to 4")):
        pair[0].plot([], [], style, ms=4, label=label)
    pair[0].set(xlabel="drafted tokens a step", title="by drafted tokens")
    pair[1].set(xlabel="accepted share of the drafted tokens", title="by their accepted share")


def _divergences(pair: Any, rows: Sequence[Row]) -> None:
    for colour, (pruning, rows_of) in zip(COLOURS, _by(rows, "theta_prob, theta_sib").items(), strict=False):
        known = [row for row in rows_of if row["KL, mean"] is not None]
        label = f"theta_prob, theta_sib\n{pruning}" if known else None
        for axes, column in zip(pair, ("KL, mean", "KL, median"), strict=True):
            axes.plot([row["tau"] for row in known], [row[column] for row in known], "o-", color=colour, label=label)
            axes.set(yscale="log", ylim=(1e-7, 20), xlabel="tau, tokens that are the same", ylabel="nats", title=column)
            axes.set_xticks([1, 2, 3, 4])


def _positions(pair: Any, rows: Sequence[Row]) -> None:
    for axes, column in zip(pair, ("article", "blend, group, k = 8"), strict=True):
        for colour, (recording, rows_of) in zip(COLOURS, _by(rows, "recording").items(), strict=False):
            known = [row for row in rows_of if row["position"] != "all" and row[column] is not None]
            places, values = [row["position"] for row in known], [row[column] for row in known]
            axes.plot(places, values, "o-", color=colour, ms=4, label=recording)
        axes.set(xlabel="position in the answer, tokens", ylabel="tokens a step", title=column)


FIGURES: dict[str, Callable[[Any, Sequence[Row]], None]] = {
    "matches": _matches,
    "sizes": _sizes,
    "sd-limit": _limits,
    "positions": _positions,
    "gsd-divergence": _divergences,
}
