# SPDX-License-Identifier: Apache-2.0
"""The figure of the benchmark: sam_core beside its peers in time, memory and acceptance, and what its options do."""

from collections.abc import Callable

from sam_lab import figures
from sam_lab.bench.acceptance import CHAINS, NEWEST, TREES, Acceptance, Task
from sam_lab.bench.rows import Figure, Row
from sam_lab.cli import LabError

COLOURS = {"ours": "#d1495b", "python": "#7a7a7a", "arctic": "#30638e", "ngram": "#edae49", "sglang": "#66a182"}
STYLES = {"newest": ":", "count": "--", "blend with group": "-", "tree": "-."}
RULES = {"newest": "#e8a0aa", "count": "#7a7a7a", "blend": "#d1495b"}
TIMES = {"append": "append", "bulk build of 4096 tokens": "build", "memory, request": "bytes"}
TASKS = {
    "request\nk=3": "chain k=3, request",
    "request\nk=8": "chain k=8, request",
    "group\nk=3": "chain k=3, group",
    "group\nk=8": "chain k=8, group",
    "group\ntree 16": "tree n=16, group",
}


def draw(path, rows: list[Row], details: dict, acceptance: Acceptance | None) -> None:
    """Write a PNG of 2250 x 1200 pixels, without what was not measured."""
    canvas, panels = figures.panels(2, 3, (15, 8), dpi=150)
    drafts, steps, ratios, beside, lengths, shorter = panels.flat
    by_name = {row.what: row for row in rows if row.ours is not None}
    _drafts(drafts, details["draft_us"])
    _steps(steps, [row for row in by_name.values() if row.what.startswith("step of 64 rows")])
    _ratios(ratios, by_name)
    _beside(beside, by_name)
    if acceptance:
        _try(lengths, lambda: _lengths(lengths, acceptance))
        _try(shorter, lambda: _shorter(shorter, acceptance))
    for axes in panels.flat:
        if axes.get_legend_handles_labels()[0]:
            columns = 3 if axes in (steps, ratios, beside) else 2 if axes is drafts else 1
            axes.legend(frameon=False, fontsize=8, ncols=columns, handlelength=3, loc="upper left")
    figures.save(canvas, path)


def _try(axes, draw_on: Callable[[], None]) -> None:
    try:
        draw_on()
    except LabError as error:
        axes.text(0.5, 0.5, f"not measured: {error}", ha="center", transform=axes.transAxes, wrap=True)


def _drafts(axes, by_name: dict[str, dict[int, Figure]]) -> None:
    for name, by_size in by_name.items():
        style = {"color": COLOURS.get(name, COLOURS["arctic" if "arctic" in name else "ours"]), "markersize": 4}
        style["linestyle"] = STYLES.get(name, "-." if "tree" in name else "-")
        label = {"tree": "blend with group, tree n=16", "arctic tree": "arctic, tree n=16"}.get(name, name)
        axes.plot([*by_size], [value.median for value in by_size.values()], marker="o", label=label, **style)
        axes.set_xscale("log")
        axes.set_xticks([*by_size], [f"{size:,}" for size in by_size])
    axes.set(yscale="log", xlabel="tokens in the sequence", ylabel="microseconds", title="A draft of k=3")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 30)  # room for the legend
    axes.xaxis.minorticks_off()


def _bars(axes, groups: list[dict[str, Figure]], spread: bool = True) -> None:
    """Groups of bars, one a contestant, with the quartiles on top."""
    width = 0.9 / len(COLOURS)
    for place, (name, colour) in enumerate(COLOURS.items()):
        values = {at: group[name] for at, group in enumerate(groups) if isinstance(group.get(name), Figure)}
        if not values:
            continue
        medians = [value.median for value in values.values()]
        below = [max(value.median - value.low, 0) for value in values.values()]
        above = [max(value.high - value.median, 0) for value in values.values()]
        where = [at + width * (place - (len(COLOURS) - 1) / 2) for at in values]
        axes.bar(where, medians, width=width * 0.9, color=colour, label=name)
        if spread:
            axes.errorbar(where, medians, [below, above], fmt="none", ecolor="black", elinewidth=0.8)


def _of(row: Row) -> dict[str, Figure]:
    return {"ours": row.ours} | {name: value for name, value in row.peers.items() if name in COLOURS}


def _steps(axes, rows: list[Row]) -> None:
    _bars(axes, [_of(row) for row in rows])
    labels = [row.what.partition("rows, ")[2] for row in rows]
    labels = [text.replace(" text", "").replace(", ", "\n").replace(" with", "\nwith") for text in labels]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.margins(y=0.3)  # room for the legend
    axes.set(yscale="log", ylabel="microseconds", title="Append and draft k=3 for 64 rows")


def _ratios(axes, by_name: dict[str, Row]) -> None:
    shown = {label: by_name[what] for what, label in TIMES.items() if what in by_name}
    groups = []
    for row in shown.values():
        values = {name: value for name, value in _of(row).items() if isinstance(value, Figure)}
        groups.append({name: Figure.of([value.median / row.ours.median]) for name, value in values.items()})
    _bars(axes, groups)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(shown)), [*shown])
    axes.margins(y=0.3)
    axes.set(yscale="log", ylabel="times ours", title="Append, bulk build, bytes a token")


def _beside(axes, by_name: dict[str, Row]) -> None:
    shown = {label: by_name[what] for label, what in TASKS.items() if what in by_name}
    _bars(axes, [_of(row) for row in shown.values()], spread=False)
    axes.set_xticks(range(len(shown)), [*shown], fontsize=8)
    axes.set_ylim(1)
    axes.margins(y=0.3)
    axes.set(ylabel="tokens a step", title="Acceptance, mean of the sets")


def _lengths(axes, acceptance: Acceptance) -> None:
    for context, style in (("request", "-"), ("group", "--")):
        for rule in ("count", "blend"):
            values = [acceptance.means(Task(rule, context, k))[0] for k in CHAINS[context]]
            look = {"color": RULES[rule], "markersize": 4, "label": f"{rule}, {context}"}
            axes.plot(CHAINS[context], values, f"o{style}", **look)
        values = [acceptance.means(Task("blend", context, n, True))[0] for n in TREES[context]]
        axes.plot(TREES[context], values, f"s{style}", color=RULES["blend"], markersize=4, label=f"tree, {context}")
    axes.set(xscale="log", xlabel="tokens of a draft", ylabel="tokens a step")
    axes.set_title("Acceptance by length of the draft")
    axes.set_xticks([3, 4, 8, 16, 32], ["3", "4", "8", "16", "32"])
    axes.minorticks_off()


def _shorter(axes, acceptance: Acceptance) -> None:
    tokens, drafted = zip(*acceptance.curve())
    axes.plot(drafted, tokens, "o-", color=RULES["blend"], markersize=4, label="blend k=8, min_prob from 0 to 0.8")
    tokens, drafted = acceptance.means(NEWEST)
    axes.plot(drafted, tokens, "D", color=RULES["newest"], label="newest, always k=3")
    axes.set(xlabel="drafted tokens a step", ylabel="tokens a step", title="Draft length, request")
