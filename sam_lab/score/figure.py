# SPDX-License-Identifier: Apache-2.0
"""Figures of a comparison: tokens a step by recording and method, and by position in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sam_lab import figures
from sam_lab.replay import BINS


def draw(path: Path, results: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Write a PNG of named results of `sam_lab.score.methods`."""
    files = list(dict.fromkeys(result["file"] for _, result in results))
    names = list(dict.fromkeys(_label(name, result) for name, result in results))
    height = max(3.6, 0.24 * len(names) + 1.4)
    canvas, pairs = figures.panels(len(files), 2, (12, height * len(files)))
    for (bars, lines), file in zip(pairs, files, strict=True):
        rows = {_label(name, result): result for name, result in results if result["file"] == file}
        for place, (name, result) in enumerate(rows.items()):
            round_, colour = divmod(names.index(name), 10)
            colour = f"C{colour}"
            bars.barh(place, result["tokens_per_step"], color=colour, alpha=0.6 if round_ else 1)
            bars.text(result["tokens_per_step"], place, f" {result['tokens_per_step']:.2f}", va="center", fontsize=8)
            known = [bin for bin in BINS if bin in result["bins"]]
            lines.plot(
                known, [result["bins"][bin] for bin in known], "o--" if round_ else "o-", color=colour, markersize=4
            )
        bars.set_yticks(range(len(rows)), rows, fontsize=8)
        bars.invert_yaxis()
        bars.axvline(1, color="black", linewidth=0.8)
        bars.margins(x=0.1)
        bars.set_xlabel("tokens a step")
        bars.set_title(Path(file).name.partition(".")[0])
        lines.set_xlabel("position in the answer, tokens (bins of 200 steps or more)")
        lines.set_ylabel("tokens a step")
        lines.grid(alpha=0.3)
    figures.save(canvas, path)


def _label(name: str, result: dict[str, Any]) -> str:
    return name if result["context"] == "request" else f"{name}, {result['context']}"
