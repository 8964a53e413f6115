# SPDX-License-Identifier: Apache-2.0
"""The report's pictures, as SVG files, in the colour-blind safe palette of Okabe and Ito.

Texts are stored as text and use the reader's fonts, because this machine may have no Chinese font.
"""

import io
import re
import warnings
from collections import defaultdict

from llm_rl.article import CURVES, tokens_per_step
from llm_rl.reports.compare import NAMES, arms_of, busy_loads
from llm_rl.reports.pages import speech

COLOURS = {"off": "#6e6e6e", "on": "#0072b2", "auto": "#d55e00"}
MARKERS = {"off": "o", "on": "s", "auto": "^"}
MIN_STEPS = 10
"""Minimum number of engine steps for a median in a picture; medians of fewer steps are only in the table."""
ARTICLE = {"off": ("#000000", ":"), "on": ("#009e73", "--")}
"""Colours and lines of the article's curves."""


def draw(summary, runs, language, article=False):
    """Draw {file name: bytes of an SVG} from a summary and its Runs, omitting pictures without data.

    article: whether to add the article's curves of acceptance, reward and length.
    """
    say = speech(language)
    fill = {"times": _times, "training": _training}
    if all(summary[arm]["step_costs"] for arm in arms_of(summary)):
        fill["rollout"] = _rollout
    if any(summary[arm]["positions"] for arm in arms_of(summary)[1:]):
        fill["acceptance"] = _acceptance
    return {
        f"pictures/{name}{say('', '.zh')}.svg": _draw(part, say, summary, runs, article) for name, part in fill.items()
    }


def _draw(fill, say, summary, runs, article):
    """A picture of 12 x 5 inches, whose panels `fill` draws."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=110, layout="constrained")
    axes = figure.subplots(1, 1 if fill is _rollout else 2, squeeze=False)[0]
    for part in axes:
        part.spines[["top", "right"]].set_visible(False)
    fill(axes, say, summary, runs, article)
    data = io.BytesIO()
    # Equal figures give equal files.
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()


def _legend(axes, **options):
    legend = axes.legend(frameon=False, **options)
    for text in legend.get_texts():  # room for Chinese characters, which are wider than what stands for a missing glyph
        text.set_text(text.get_text() + " " * len(re.findall("[\u3000-\uffef]", text.get_text())))


def _times(axes, say, summary, runs, article):
    seconds, costs = axes
    names = {
        "round_s": say("mean round", "单轮平均"),
        "rollout_s": say("rollout of a\ntraining step", "训练步的 Rollout"),
        "step_s": say("training step", "训练步"),
    }
    names = {name: label for name, label in names.items() if summary["off"][name] is not None}
    arms = arms_of(summary)
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        places = [place + (i - (len(arms) - 1) / 2) * width for place in range(len(names))]
        values = [summary[arm][name] for name in names]
        bars = seconds.bar(places, values, width=0.92 * width, color=COLOURS[arm], label=NAMES[arm])
        labels = [f"{value:.2f} s" for value in values]
        if arm != "off":
            gains = [summary[arm]["gain"][name.removesuffix("_s")] for name in names]
            gains = ["\n{gain:+.1%}".format(**gain) if gain and gain["shown"] else "" for gain in gains]
            labels = [f"{text}{gain}" for text, gain in zip(labels, gains, strict=True)]
        seconds.bar_label(bars, labels, padding=2, fontsize=9)
    seconds.set_xticks(range(len(names)), names.values())
    seconds.margins(y=0.22)
    first, last = summary["first_step_counted"], summary["steps"]
    title = say(
        "Mean of training steps {} to {}; gain: median of off / on - 1",
        "训练步 {} 至 {} 的均值；收益：off / on - 1 的中位数",
    )
    busy = say("; other work kept the machine BUSY", "；机器当时繁忙") if busy_loads(summary) else ""
    seconds.set(title=title.format(first, last) + busy, ylabel=say("seconds", "秒"))
    _legend(seconds, loc="upper left", ncols=len(arms))
    _step_costs(costs, say, summary)


def _step_costs(axes, say, summary):
    axes.set_title(say("Time of an engine step", "引擎步的耗时"))
    if not all(summary[arm]["step_costs"] for arm in arms_of(summary)):
        _no_engine_log(axes, say)
        return
    lines = [("off", "plain", "SAM off", "-")]
    lines += [
        (arm, "drafted", NAMES[arm] + say(", steps with drafts", "，有草稿的步"), "-") for arm in arms_of(summary)[1:]
    ]
    lines += [
        (arm, "plain", NAMES[arm] + say(", steps without", "，没有草稿的步"), ":") for arm in arms_of(summary)[1:]
    ]
    for arm, kind, label, style in lines:
        rows = [row for row in summary[arm]["step_costs"] if row[kind] >= MIN_STEPS]
        requests, times = ([row[name] for row in rows] for name in ("max_running", f"{kind}_ms"))
        face = "white" if style == ":" else COLOURS[arm]
        axes.plot(requests, times, MARKERS[arm] + style, color=COLOURS[arm], label=label, markerfacecolor=face)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel=say("maximum running requests", "最大运行请求数"), ylabel=say("median, ms", "中位数，毫秒"))
    axes.set_ylim(bottom=0)
    _legend(axes)


def _rollout(axes, say, summary, runs, article):
    """Draw the busiest replica's running requests over time, in the last training step in which the run generated."""
    (axes,) = axes
    threshold = summary["threshold"]
    last = {arm: next(part for part in reversed(run.engine) if part) for arm, run in runs.items()}
    peak = max(row[3] for rows in last.values() for row in rows)
    for place, arm in enumerate(arms_of(summary)):
        rows = last[arm]
        busy: dict[int, float] = defaultdict(float)
        for replica, _, seconds, *_ in rows:
            busy[replica] += seconds
        busiest = max(busy, key=busy.__getitem__)
        rows = [row for row in rows if row[0] == busiest]
        times, running = _curve(rows)
        axes.plot(times, running, color=COLOURS[arm], label=NAMES[arm], linewidth=1.5)
        full = next((at for at, count in enumerate(running) if count > threshold), 0)
        tail = [at >= full and 0 < count <= threshold for at, count in enumerate(running)]  # not while requests arrive
        axes.fill_between(times, running, where=tail, color=COLOURS[arm], alpha=0.22, linewidth=0)
        if arm != "off":
            drafting = [row[1] - rows[0][1] for row in rows if row[5]]
            height = [-0.045 * place * peak] * len(drafting)
            label = NAMES[arm] + say(": engine step with drafts", "：有草稿的引擎步")
            axes.plot(drafting, height, "|", color=COLOURS[arm], label=label, rasterized=True)  # there may be many
    label = say("threshold {}; tail shaded", "阈值 {}；阴影为长尾").format(threshold)
    axes.axhline(threshold, color="black", linewidth=0.9, linestyle="--", label=label)
    gained = {NAMES[arm]: summary[arm]["gain"]["tail"] for arm in arms_of(summary)[1:]}
    faster = say("{} {:.2f} times as fast", "{} 速度是 {:.2f} 倍")
    speedups = [faster.format(name, 1 + gain["gain"]) for name, gain in gained.items() if gain and gain["shown"]]
    if article:
        off, on = (CURVES["stages"][arm]["tail"] for arm in ("off", "on"))
        speedups.append(say("the article {:.2f}", "文章 {:.2f}").format(off / on))
    tails = say("; tail: ", "；长尾：") + say(", ", "，").join(speedups) if speedups else ""
    generated = "" if all(run.engine[-1] for run in runs.values()) else say(" that generated", "有生成的")
    title = say("Requests running in the last training step{}{}", "最后一个{}训练步中运行的请求{}")
    axes.set_title(title.format(generated, tails))
    axes.set_ylim(-0.04 * peak * len(runs), 1.05 * peak)
    axes.locator_params(axis="y", integer=True)
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 1.05 * peak])
    axes.set(xlabel=say("seconds since the rollout began", "Rollout 开始后的秒数"))
    axes.set(ylabel=say("running requests", "运行中的请求数"))
    _legend(axes)


def _curve(rows):
    """Times since the first row and running requests, as a step curve that is 0 while the engine is idle."""
    times: list[float] = []
    running: list[int] = []
    for _, start, seconds, count, *_ in rows:
        at = start - rows[0][1]
        if times and at > times[-1] + 0.01:
            times += [times[-1], at]
            running += [0, 0]
        times += [at, at + seconds]
        running += [count, count]
    return times, running


def _acceptance(axes, say, summary, runs, article):
    by_position, by_requests = axes
    first = summary["first_step_counted"] - 1
    highest = 1.0
    starts = sorted({row["from"] for arm in arms_of(summary)[1:] for row in summary[arm]["positions"]})
    for arm in arms_of(summary)[1:]:
        rows = summary[arm]["positions"]
        values = [row["tokens"] / row["steps"] for row in rows]
        highest = max([highest, *values])
        style = {"color": COLOURS[arm], "label": NAMES[arm]}
        by_position.plot([starts.index(row["from"]) for row in rows], values, MARKERS[arm] + "-", **style)
        sums: dict[int, tuple[int, int]] = {}
        for row in (row for part in runs[arm].engine[first:] for row in part):
            requests, tokens = sums.get(row[3], (0, 0))
            sums[row[3]] = requests + row[3], tokens + row[4]
        values = [sums[n][1] / sums[n][0] for n in sorted(sums)]
        highest = max([highest, *values])
        by_requests.plot(sorted(sums), values, MARKERS[arm] + "-", markersize=4, **style)
    if article:
        values = [tokens_per_step(*span) for span in zip(starts, [*starts[1:], float("inf")], strict=True)]
        highest = max([highest, *filter(None, values)])
        values = [float("nan") if value is None else value for value in values]
        colour, line = ARTICLE["on"]
        by_position.plot(
            range(len(starts)),
            values,
            line,
            color=colour,
            label=say("the article (8B, k = 3, greedy)", "文章（8B，k = 3，贪心）"),
        )
    by_position.set_xticks(range(len(starts)), [f"{at:,}" for at in starts], rotation=30)
    title = say("Tokens per request and step, {}", "每请求每步 token 数，{}")
    by_position.set(
        title=title.format(say("steps with a draft", "有草稿的步")),
        xlabel=say("tokens of the answer before the step, from", "该步之前回答的 token 数（起）"),
    )
    by_requests.set(title=title.format(say("all steps", "全部步")), xlabel=say("running requests", "运行中的请求数"))
    threshold = {"color": "black", "linewidth": 0.9, "linestyle": "--", "label": say("threshold", "阈值")}
    by_requests.axvline(summary["threshold"] + 0.5, **threshold)
    if not all(runs[arm].engine for arm in arms_of(summary)[1:]):
        _no_engine_log(by_requests, say)
    for part in axes:
        part.axhline(1, color=COLOURS["off"], linewidth=1.5, label=NAMES["off"])
        part.set(ylim=(0.9, highest + 0.1 * (highest - 0.9)), ylabel=say("tokens", "token 数"))
        _legend(part)


def _training(axes, say, summary, runs, article):
    titles = say(("Mean reward", "Mean answer, tokens"), ("平均奖励", "平均回答长度，token"))
    for part, name, title in zip(axes, ("rewards", "lengths"), titles, strict=True):
        for arm in reversed(arms_of(summary)):  # off last, thin and on top, so that equal curves both show
            values = summary[arm][name]
            style = {"color": COLOURS[arm], "label": NAMES[arm], "linewidth": 4, "markersize": 9, "alpha": 0.55}
            if arm == "off":
                style |= {"linewidth": 1.2, "markersize": 4, "alpha": 1}
            part.plot(range(1, len(values) + 1), values, MARKERS[arm] + "-", **style)
        for arm, (colour, line) in ARTICLE.items() if article else ():
            values = CURVES[name.removesuffix("s")][arm]
            label = say("the article, {} (32B)", "文章，{}（32B）").format(NAMES[arm])
            part.plot(range(1, len(values) + 1), values, line, color=colour, label=label, linewidth=1.2)
        part.set_title(title)
        part.margins(y=0.15)
        part.set_xlabel(say("training step", "训练步"))
        part.locator_params(axis="x", integer=True)
        _legend(part)


def _no_engine_log(axes, say):
    text = say("no engine log that matches the step log", "没有与步日志相符的引擎日志")
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])
