# SPDX-License-Identifier: Apache-2.0
"""Draw the dashboard's panels with what the bed's Prometheus answered.

    make test-bed-long
    PYTHONPATH=. .venvs/bench/bin/python ansible/tests/bed/draw_dashboard.py

Titles, places, units and legends are those of the dashboard on the bed's head. Grafana itself draws them in other ways.
"""

import argparse
import json
import re
from pathlib import Path

from sam_lab import figures

ROOT = Path(__file__).parents[3]
SCALES = {"bytes": (2**30, "GiB"), "percentunit": (0.01, "%"), "percent": (1, "%"), "s": (1, "s")}
MAX_LEGEND = 8
"""Lines of a panel that are named."""


def legend(text: str, labels: dict[str, str]) -> str:
    """Grafana's legend format: {{label}} stands for a label's value."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), text)


def draw(axes, panel: dict, answers: dict[str, list[dict]], begin: float, end: float) -> None:
    scale, unit = SCALES.get(panel["fieldConfig"]["defaults"]["unit"], (1, ""))
    lines = [(target, series) for target in panel["targets"] for series in answers[target["expr"]]]
    for target, series in lines:
        points = ((time - begin, float(value) / scale) for time, value in series["values"])
        times, values = zip(*points, strict=True)
        axes.plot(times, values, linewidth=1, label=legend(target["legendFormat"], series["metric"]))
    axes.set_title(panel["title"] + (f" ({unit})" if unit else ""), fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    axes.set_xlim(0, end - begin)
    axes.set_ylim(bottom=0 if panel["fieldConfig"]["defaults"].get("min") == 0 else None)
    if len(lines) <= MAX_LEGEND:
        axes.legend(fontsize=6, frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=Path, default=ROOT / ".cache/bed/logs/dashboard.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures/dashboard.png")
    options = parser.parse_args()
    if not options.answers.exists():
        parser.error(f"{options.answers} is missing: run make test-bed-long, which asks Prometheus")
    if not figures.can_draw():
        parser.exit(1)
    read = json.loads(options.answers.read_text())
    shown = read["panels"]
    figure, axes = figures.panels(-(-len(shown) // 2), 2, (10, 13))
    end = max(time for found in read["answers"].values() for series in found for time, _ in series["values"])
    places = sorted(shown, key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    for one, panel in zip(axes.flat[: len(places)], places, strict=True):
        draw(one, panel, read["answers"], read["begin"], end)
    for unused in axes.flat[len(places) :]:
        unused.remove()
    figure.supxlabel("s since train.yml was called", fontsize=8)
    figures.save(figure, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
