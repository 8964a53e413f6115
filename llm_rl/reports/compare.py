# SPDX-License-Identifier: Apache-2.0
"""Compare finished runs that differ only in speculation: the figures of summary.json and of the table."""

import random
import statistics

from sam_core.engines.vllm.step_log import CPU, SUMS

from llm_rl.errors import UserError
from llm_rl.load import busy
from llm_rl.reports.drafting import positions, sources, step_costs
from llm_rl.reports.runs import SPEC
from llm_rl.steps import mean, round_seconds, step_seconds

LOG_PROB_DIFF, TOTAL = "rollout_corr/log_prob_diff/", "/total"
RESAMPLES, MIN_STEPS = 1000, 5
ARMS = ("on", "auto")
"""Runs with speculation, each compared with `off`."""
NAMES = {"off": "SAM off", "on": "SAM on", "auto": "SAM auto"}


def check_comparable(off, on, arm):
    """Raise UserError unless the runs differ only in speculation and run `arm` verified drafts."""
    for name in ("pin_set", "tree_ids", "seed", "threshold"):
        if off.record[name] != on.record[name]:
            raise UserError(f"the runs differ in {name}: {off.record[name]} off, {on.record[name]} {arm}")
    left_out = {"sam": None, "sam_options": None}
    configs = [run.record.get("config", {}) | left_out for run in (off, on)]
    if configs[0] != configs[1]:
        raise UserError(f"the runs differ in {_difference(*configs)}; only sam and sam_options may differ")
    if len(off.steps) != len(on.steps):
        raise UserError(f"the runs differ in length: {len(off.steps)} training steps off, {len(on.steps)} {arm}")
    if off.total("drafted"):
        raise UserError(f"the off run verified {off.total('drafted'):.0f} draft tokens: it ran with speculation")
    if not on.total("drafted"):
        raise UserError(f"the {arm} run verified no draft: it ran without speculation")


def _difference(off, on, path="config"):
    """The dotted path of the first setting that differs between two configurations."""
    if not (isinstance(off, dict) and isinstance(on, dict)):
        return path
    name = next(name for name in sorted({*off, *on}) if off.get(name) != on.get(name))
    return _difference(off.get(name), on.get(name), f"{path}.{name}")


def summarize(runs, sampled=None):
    """The content of summary.json. Times are in seconds; lists have one entry per training step.

    runs: {"off": Run, "on": Run, "auto": Run}, where "on" or "auto" may be missing; sampled: {arm:
    compare_answers(...)}. The first training step starts engines and compiles, so means and sums exclude it if there
    are others.
    """
    off = runs["off"]
    for arm in runs.keys() - {"off"}:
        check_comparable(off, runs[arm], arm)
    first = 1 if len(off.steps) > 1 else 0
    for arm, run in runs.items():
        if not run.total("tokens", first) or not run.total("request_steps", first):
            raise UserError(f"the {arm} run counted no tokens from training step {first + 1} on")
    arms = {arm: _arm(run, first) for arm, run in runs.items()}
    for arm in arms.keys() - {"off"}:
        arms[arm] |= {"gain": _gains(off, runs[arm], first), "sampled": (sampled or {}).get(arm)}
    return {
        **{name: off.record[name] for name in ("pin_set", "tree_ids", "seed", "threshold")},
        "recipe": _recipe(off.record),
        "steps": len(off.steps),
        "first_step_counted": first + 1,
        **arms,
    }


def _recipe(record):
    """Names of the recipe and its model, and its number of devices; "-" if an old record lacks them."""
    config = record.get("config", {})
    model, cluster = config.get("model", {}).get("path", "-"), config.get("cluster", {})
    dies = f"{cluster['nodes']} x {cluster['dies_per_node']} {cluster['device']}" if cluster else "-"
    return {"name": record.get("name", "-"), "model": model.rpartition("/")[2], "dies": dies}


def _gains(off, on, first):
    """The gains of the Run `on` over `off`, {name: _gain(...)}, comparing steps with the same number."""

    def of(name, unit=None):
        def value(step):
            amount, units = step.get(name), step.get(unit) if unit else 1
            return amount / units if amount and units else None

        return value

    values = {
        "round": round_seconds,
        "rollout": of("timing_s/gen"),
        "step": step_seconds,
        "rollout_per_token": of("timing_s/gen", SPEC + "tokens"),
        "tail": of(SPEC + "tail_s", SPEC + "tail_tokens"),
        "engine_steps": of(SPEC + "decode_steps"),
        "cpu": of(SPEC + CPU, SPEC + "tokens"),
    }
    steps = list(zip(off.steps, on.steps, strict=True))[first:]
    return {name: _gain([(value(old), value(new)) for old, new in steps]) for name, value in values.items()}


def _gain(pairs):
    """The gain over pairs (off, on), one per training step: the median of off / on - 1. None if no pair is complete.

    low, high: 95 % bootstrap interval over steps (RESAMPLES resamples), None with fewer than MIN_STEPS steps; shown:
    whether the interval excludes 0.
    """
    ratios = [old / new - 1 for old, new in pairs if old and new]
    if not ratios:
        return None
    low = high = None
    if len(ratios) >= MIN_STEPS:
        draw = random.Random(0)
        drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
        low, high = (drawn[int(share * RESAMPLES)] for share in (0.025, 0.975))
    return {"gain": statistics.median(ratios), "low": low, "high": high, "shown": low is not None and low * high > 0}


def _arm(run, first):
    step_times = list(map(step_seconds, run.steps))
    totals = {name: run.total(name, first) for name in (*SUMS, CPU)}
    padding, padding_accepted = (run.total(name, first) or 0 for name in ("padding", "padding_accepted"))
    drafted, accepted = totals["drafted"] - padding, totals["accepted"] - padding_accepted
    options = run.record.get("config", {}).get("sam_options", {})
    return {
        "sam": run.record["sam"],
        "k": run.record["k"],
        **{name: options.get(name) for name in ("rule", "sources", "min_prob", "verify")},
        "host": run.record.get("host"),
        "load": run.load(first),
        "resumed_after": [n for attempt in run.record.get("attempts", []) if (n := attempt["after_step"])],
        "round_s": mean(map(round_seconds, run.steps[first:])),
        "rollout_s": mean(run.values("timing_s/gen", first)),
        "rollout_ms_per_token": 1e3 * sum(run.values("timing_s/gen", first)) / totals["tokens"],
        "step_s": mean(step_times[first:]),
        "rollout_s_per_step": run.values("timing_s/gen"),
        "tokens_per_training_step": run.values(SPEC + "tokens"),
        "step_s_per_step": step_times,
        **totals,
        "tokens_per_step": totals["tokens"] / totals["request_steps"],
        "padding": padding,
        "acceptance_rate": accepted / drafted if drafted else None,
        "switch_on_share": mean(run.values(SPEC + "switch_on_share", first)),
        "draft_ms": mean(run.values(SPEC + "draft_ms", first)),
        "positions": positions(run, first),
        "by_source": sources(run, first),
        "step_costs": step_costs(run, first),
        "log_prob_differences": _log_prob_differences(run),
        "index_bytes": [step[SPEC + "index_bytes"] for step in run.steps if SPEC + "index_bytes" in step],
        "rewards": run.values("critic/rewards/mean"),
        "lengths": run.values("response_length/mean"),
    }


def _log_prob_differences(run):
    """Number of tokens of all training steps, by upper bound of their log-probability difference (rollout, training).

    Empty if no step logged it.
    """
    counts: dict[str, float] = {}
    for step in run.steps:
        for name, count in step.items():
            if name.startswith(LOG_PROB_DIFF):
                bound = name.removeprefix(LOG_PROB_DIFF).removesuffix(TOTAL)
                counts[bound] = counts.get(bound, 0) + count
    return counts


def arms_of(summary):
    """The arms of a summary, `off` first."""
    return [arm for arm in ("off", *ARMS) if arm in summary]


def gained_cell(gain):
    """A gain with its interval, or "-" if it is not shown."""
    return "{gain:+.1%} ({low:+.1%} .. {high:+.1%})".format(**gain) if gain and gain["shown"] else "-"


FIGURES = (
    ("engine steps", "decode_steps", ",.0f", "engine_steps"),
    ("tokens per request and step", "tokens_per_step", ".3f", None),
    ("engine's CPU time, ms per token", "cpu_ms_per_token", ".3f", "cpu"),
    ("round of generation, s", "round_s", ".2f", "round"),
    ("rollout, s per training step", "rollout_s", ".2f", "rollout"),
    ("training step, s", "step_s", ".2f", "step"),
    ("rollout, ms per token", "rollout_ms_per_token", ".3f", "rollout_per_token"),
    ("tail, s", "tail_s", ".2f", None),
    ("tail, ms per token", "tail_ms_per_token", ".3f", "tail"),
    ("tokens", "tokens", ",.0f", None),
    ("draft tokens verified", "drafted", ",.0f", None),
    ("draft tokens accepted", "accepted", ",.0f", None),
    ("padding among them", "padding", ",.0f", None),
    ("acceptance", "acceptance_rate", ".1%", None),
    ("steps with the switch on", "switch_on_share", ".1%", None),
    ("drafting, ms per engine step", "draft_ms", ".3f", None),
    ("mean reward", "reward", "+.3f", None),
    ("mean answer, tokens", "length", ".1f", None),
)
"""The main figures: label, name, format, and name of the gain; first those that do not depend on machine load."""


def figures(summary):
    """Rows of FIGURES: label, value of `off`, and for each other arm its value and its gain."""
    first = summary["first_step_counted"] - 1
    off, *others = (summary[arm] for arm in arms_of(summary))
    left_out = {
        "round_s": off["round_s"] is None,
        "tail_ms_per_token": not all(arm["tail_tokens"] for arm in (off, *others)),
        "cpu_ms_per_token": not any(arm["cpu_s"] for arm in (off, *others)),
        "padding": not any(arm["padding"] for arm in others),
    }

    def cells(arm, name, form, gain):
        value = arm[name]
        yield "-" if value is None else format(value, form)
        if arm["gain"]:
            gained = arm["gain"][gain] if gain else None
            yield gained_cell(gained) if gained else ""

    arms = [{"gain": None} | arm | _means(arm, first) for arm in (off, *others)]
    return [
        [what, *(cell for arm in arms for cell in cells(arm, name, form, gain))]
        for what, name, form, gain in FIGURES
        if not left_out.get(name)
    ]


def _means(arm, first):
    """Figures of an arm that summary.json lacks: milliseconds per token, mean reward and length."""
    return {
        "tail_ms_per_token": 1e3 * arm["tail_s"] / arm["tail_tokens"] if arm["tail_tokens"] else None,
        "cpu_ms_per_token": 1e3 * arm["cpu_s"] / arm["tokens"] if arm["cpu_s"] else None,
        "reward": mean(arm["rewards"][first:]),
        "length": mean(arm["lengths"][first:]),
    }


def busy_loads(summary):
    """The machine load of each run by its name, if the machine was busy with other work in any run, else None."""
    loads = {NAMES[arm]: load for arm in arms_of(summary) if (load := summary[arm]["load"])}
    return loads if any(map(busy, loads.values())) else None
