# SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison: seconds, one rollout from its start to its tail, tokens a step, reward and length."""

COLOURS = {"off": "#7a7a7a", "on": "#d1495b"}
NAMES = {"off": "SAM off", "on": "SAM on"}


def draw(path, summary, off, on):
    """Write the picture of `summary` and of the two Runs behind it to `path`, a PNG of 1800 x 1200 pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{summary['pin_set']}, seed {summary['seed']}, k = {summary['k']}, threshold {summary['threshold']}",
        fontsize=12,
    )
    runs = {"off": off, "on": on}
    seconds, rollout, tokens, training = figure.subplots(2, 2).flat
    _draw_seconds(seconds, summary)
    _draw_rollout(rollout, runs, summary["threshold"])
    _draw_tokens(tokens, summary, on)
    _draw_training(training, summary)
    for axes in (seconds, rollout, tokens, training):
        axes.spines[["top"]].set_visible(False)
    for axes in (seconds, rollout, tokens):
        axes.spines[["right"]].set_visible(False)
    figure.savefig(path, format="png")


def _draw_seconds(axes, summary):
    places = {"rollout": ("rollout_s", 0), "training step": ("step_s", 1)}
    for arm, shift in (("off", -0.2), ("on", 0.2)):
        bars = axes.bar(
            [place + shift for _, place in places.values()],
            [summary[arm][name] for name, _ in places.values()],
            width=0.36,
            color=COLOURS[arm],
            label=NAMES[arm],
        )
        axes.bar_label(bars, fmt="%.2f s", padding=2)
    gains = (summary["gain"]["rollout"], summary["gain"]["step"])
    axes.set_xticks([0, 1], [f"{what}\ngain {gain:+.1%}" for what, gain in zip(places, gains)], fontsize=11)
    axes.set_ylabel("seconds a training step")
    axes.margins(y=0.15)
    first, last = summary["first_step_counted"], summary["steps"]
    title = f"Mean of training steps {first} to {last}" if last > first else f"Training step {last}"
    per = " per token" if summary["tail_speedup_is_per_token"] else ""
    if summary["tail_speedup"]:
        title += f"; tail {summary['tail_speedup']:.2f} times as fast{per}"
    axes.set_title(title)
    axes.legend(loc="upper left", frameon=False)


def _draw_rollout(axes, runs, threshold):
    """Running requests of the busiest replica over time, in the last training step."""
    axes.set_title("Requests running in the last training step's rollout")
    if not all(run.engine for run in runs.values()):
        _say(axes, "no engine log that matches the step log")
        return
    for arm, run in runs.items():
        rows = run.engine[-1]
        busy = {replica: sum(row[2] for row in rows if row[0] == replica) for replica, *_ in rows}
        rows = [row for row in rows if row[0] == max(busy, key=busy.get)]
        times, running = _curve(rows)
        axes.plot(times, running, color=COLOURS[arm], label=NAMES[arm], linewidth=1.4)
        tail = [0 < count <= threshold for count in running]
        axes.fill_between(times, running, where=tail, color=COLOURS[arm], alpha=0.22, linewidth=0)
        if arm == "on":
            drafting = [row[1] - rows[0][1] for row in rows if row[5]]
            axes.plot(
                drafting, [-0.7] * len(drafting), "|", color=COLOURS[arm], markersize=5, label="engine step with drafts"
            )
    axes.axhline(threshold, color="black", linewidth=0.8, linestyle=":", label=f"threshold {threshold}; tail shaded")
    axes.set_xlabel("seconds since the rollout began")
    axes.set_ylabel("running requests")
    axes.legend(frameon=False)


def _curve(rows):
    """Times since the first row and running requests, as a line with corners that falls to 0 where the engine idled."""
    times, running = [], []
    for _, start, seconds, count, *_ in rows:
        at = start - rows[0][1]
        if times and at > times[-1] + 0.01:
            times += [times[-1], at]
            running += [0, 0]
        times += [at, at + seconds]
        running += [count, count]
    return times, running


def _draw_tokens(axes, summary, on):
    """Tokens a step by the number of running requests; by training step where no engine log was kept."""
    axes.set_ylabel("tokens a step and request")
    if on.engine:
        sums = {}
        for row in (row for part in on.engine[summary["first_step_counted"] - 1 :] for row in part):
            steps, tokens = sums.get(row[3], (0, 0))
            sums[row[3]] = steps + row[3], tokens + row[4]
        counts = sorted(sums)
        values = [sums[n][1] / sums[n][0] for n in counts]
        axes.plot(counts, values, "o-", color=COLOURS["on"], markersize=4, label=NAMES["on"])
        axes.axvline(summary["threshold"] + 0.5, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            "to the left of this line\ndrafting is on",
            (summary["threshold"] + 0.5, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(6, 0),
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=9,
        )
        axes.set_title("Tokens that one request gains in one engine step")
        axes.set_xlabel("running requests")
    else:
        numbers = range(1, len(on.steps) + 1)
        values = [step["rollout/spec/tokens"] / step["rollout/spec/request_steps"] for step in on.steps]
        axes.plot(numbers, values, "o-", color=COLOURS["on"], label=NAMES["on"])
        axes.set_title("Tokens that one request gains in one engine step, whole rollout")
        axes.set_xlabel("training step")
        _whole_numbers(axes)
    axes.axhline(1, color=COLOURS["off"], linewidth=1.4, label=NAMES["off"])
    axes.set_ylim(0.8, max(2.0, 1.15 * max(values)))
    axes.legend(frameon=False)


def _draw_training(axes, summary):
    lengths = axes.twinx()
    lengths.spines[["top"]].set_visible(False)
    numbers = range(1, summary["steps"] + 1)
    for arm in ("off", "on"):
        axes.plot(numbers, summary[arm]["rewards"], "o-", color=COLOURS[arm], label=f"reward, {NAMES[arm]}")
        lengths.plot(
            numbers, summary[arm]["lengths"], "s--", color=COLOURS[arm], label=f"length, {NAMES[arm]}", alpha=0.7
        )
    axes.set_title("Reward and answer length")
    axes.set_xlabel("training step")
    _whole_numbers(axes)
    axes.set_ylabel("mean reward (solid)")
    lengths.set_ylabel("mean answer, tokens (dashed)")
    axes.margins(y=0.1)
    lengths.margins(y=0.1)
    handles = [*axes.get_lines(), *lengths.get_lines()]
    axes.legend(
        handles,
        [line.get_label() for line in handles],
        frameon=False,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
    )


def _say(axes, text):
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _whole_numbers(axes):
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
