# SPDX-License-Identifier: Apache-2.0
"""Figures by matplotlib, without a display."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from sam_core.files import replacing


def can_draw() -> bool:
    """Whether matplotlib is installed; if not, says so on stderr."""
    if importlib.util.find_spec("matplotlib"):
        return True
    print("no figure: matplotlib is not installed", file=sys.stderr)
    return False


def panels(rows: int, columns: int, size: tuple[float, float], dpi: int = 120) -> tuple[Any, Any]:
    """A figure of `size` inches and its axes [rows, columns], without lines above and on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write a PNG atomically."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
