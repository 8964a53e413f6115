# SPDX-License-Identifier: Apache-2.0
"""The picture of a benchmark: drafts by length of the text, whole steps, acceptance by draft length, draft length."""

from collections.abc import Callable

from acceptance import NEWEST, TARGETS, TREES, Acceptance, Task
from rows import NotMeasured, Row

COLOURS = {"ours": "#d1495b", "python": "#7a7a7a", "arctic": "#30638e", "ngram": "#edae49"}
STYLES = {"tree": "-.", "newest": ":", "count": "--"}
RULES = {"newest": "#e8a0aa", "count": "#7a7a7a", "blend": "#d1495b"}


def draw(path, rows: list[Row], details: dict, acceptance: Acceptance | None) -> None:
    """Write a PNG of 1800 x 1200 pixels; what was not measured is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    drafts, steps, accepted, shorter = figure.subplots(2, 2).flat
    _drafts(drafts, details)
    _steps(steps, rows)
    if acceptance:
        _try(accepted, lambda: _accepted(accepted, acceptance))
        _try(shorter, lambda: _shorter(shorter, acceptance))
    for axes in (drafts, steps, accepted, shorter):
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9, ncols=4 if axes is steps else 1)
    figure.savefig(path, format="png")


def _try(axes, draw_on: Callable[[], None]) -> None:
    try:
        draw_on()
    except NotMeasured as error:
        axes.text(0.5, 0.5, f"not measured: {error}", ha="center", transform=axes.transAxes, wrap=True)


def _drafts(axes, details: dict) -> None:
    axes.set_xscale("log")
    for what, by_size in details.items():
        if not what.startswith(("draft", "tree")):
            continue
        for name, values in by_size.items():
            label = what.removesuffix(", us") if name == "ours" else name
            if name == "ours" or what.startswith("draft k=3 newest"):
                style = next((style for word, style in STYLES.items() if word in what), "-") if name == "ours" else "-"
                axes.plot(*zip(*values.items()), f"o{style}", color=COLOURS[name], markersize=4, label=label)
                axes.set_xticks([*values], [f"{size:,}" for size in values])
    axes.set(yscale="log", xlabel="tokens in the sequence", ylabel="microseconds a draft", title="Drafts")
    axes.xaxis.minorticks_off()


def _steps(axes, rows: list[Row]) -> None:
    found = [row for row in rows if row.what.startswith("step of") and row.ours is not None]
    for number, row in enumerate(found):
        values = {"ours": row.ours} | {name: value for name, value in row.peers.items() if isinstance(value, float)}
        for place, name in enumerate(COLOURS):
            if name in values:
                label = name if number == 0 else None
                axes.bar(number + 0.2 * (place - 1.5), values[name], width=0.18, color=COLOURS[name], label=label)
        axes.plot([number - 0.4, number + 0.4], [row.target] * 2, color="black", linewidth=1)
    axes.margins(y=0.25)  # room for the legend
    labels = [row.what.partition("rows, ")[2].removesuffix(", us").replace(", ", "\n") for row in found]
    axes.set_xticks(range(len(found)), labels, fontsize=9)
    axes.set(yscale="log", ylabel="microseconds", title="Append and draft k=3 for a batch (line: target)")


def _accepted(axes, acceptance: Acceptance) -> None:
    for context, style in (("request", "-"), ("group", "--")):
        for rule in ("count", "blend"):
            values = [acceptance.means(Task(rule, context, k))[0] for k in TARGETS[context]]
            axes.plot(
                [*TARGETS[context]], values, f"o{style}", color=RULES[rule], markersize=4, label=f"{rule}, {context}"
            )
        values = [acceptance.means(Task("blend", context, n, True))[0] for n in TREES[context]]
        axes.plot([*TREES[context]], values, f"s{style}", color=RULES["blend"], markersize=4, label=f"tree, {context}")
    axes.set(xscale="log", xlabel="tokens of a draft", ylabel="tokens a step", title="Acceptance, mean of the sets")
    axes.set_xticks([3, 4, 8, 16, 32], ["3", "4", "8", "16", "32"])
    axes.minorticks_off()


def _shorter(axes, acceptance: Acceptance) -> None:
    tokens, drafted = zip(*acceptance.curve())
    axes.plot(drafted, tokens, "o-", color=RULES["blend"], markersize=4, label="blend k=8, min_prob from 0 to 0.8")
    tokens, drafted = acceptance.means(NEWEST)
    axes.plot(drafted, tokens, "D", color=RULES["newest"], label="newest, always k=3")
    axes.set(xlabel="drafted tokens a step", ylabel="tokens a step", title="Draft length, request")
