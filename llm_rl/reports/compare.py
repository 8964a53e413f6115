# SPDX-License-Identifier: Apache-2.0
"""Compare finished runs that differ in speculation alone: the figures of summary.json and of the table."""

from sam_core.engines.vllm.step_log import CPU, SUMS

from llm_rl.load import busy
from llm_rl.reports.drafting import positions, sources, step_costs
from llm_rl.reports.runs import SPEC, ReportError

ARMS = ("on", "auto")
"""Runs with speculation, each compared with `off`."""
NAMES = {"off": "SAM off", "on": "SAM on", "auto": "SAM auto"}


def check_comparable(off, on, arm):
    """ReportError unless the runs differ in speculation alone and the run of `arm` speculated."""
    for name in ("pin_set", "tree_ids", "seed", "threshold"):
        if off.record[name] != on.record[name]:
            raise ReportError(f"the runs differ in {name}: {off.record[name]} off, {on.record[name]} {arm}")
    configs = [
        {name: value for name, value in run.record.get("config", {}).items() if name not in ("sam", "sam_options")}
        for run in (off, on)
    ]
    if configs[0] != configs[1]:
        raise ReportError(f"the runs differ in {_difference(*configs)}; only sam and sam_options may differ")
    if len(off.steps) != len(on.steps):
        raise ReportError(f"the runs differ in length: {len(off.steps)} training steps off, {len(on.steps)} {arm}")
    if off.total("drafted"):
        raise ReportError(f"the off run verified {off.total('drafted'):.0f} draft tokens: it ran with speculation")
    if not on.total("drafted"):
        raise ReportError(f"the {arm} run verified no draft: speculation was silently absent")


def _difference(off, on, path="config"):
    """The first setting that two configurations do not share, as a dotted path."""
    if not (isinstance(off, dict) and isinstance(on, dict)):
        return path
    name = next(name for name in sorted({*off, *on}) if off.get(name) != on.get(name))
    return _difference(off.get(name), on.get(name), f"{path}.{name}")


def summarize(runs, sampled=None):
    """The content of summary.json. Times in seconds; lists have one entry a training step.

    `runs`: {"off": Run, "on": Run} and perhaps "auto"; `sampled`: {arm: what compare_answers found}. The first training
    step starts engines and compiles, so means and sums leave it out where there are others.
    """
    off = runs["off"]
    for arm in runs.keys() - {"off"}:
        check_comparable(off, runs[arm], arm)
    first = 1 if len(off.steps) > 1 else 0
    for arm, run in runs.items():
        if not run.total("tokens", first) or not run.total("request_steps", first):
            raise ReportError(f"the {arm} run counted no tokens from training step {first + 1} on")
    arms = {arm: _arm(run, first) for arm, run in runs.items()}
    for arm in arms.keys() - {"off"}:
        arms[arm] |= _gains(arms["off"], arms[arm]) | {"sampled": (sampled or {}).get(arm)}
    return {
        **{name: off.record[name] for name in ("pin_set", "tree_ids", "seed", "threshold")},
        "steps": len(off.steps),
        "first_step_counted": first + 1,
        **arms,
    }


def _gains(off, on):
    """What `on` gained over `off`; each gain is None where a time of either is missing."""

    def ratio(of):
        old, new = of(off), of(on)
        return old / new if old and new else None

    per_token = bool(off["tail_tokens"] and on["tail_tokens"])
    speedups = {
        "round": ratio(lambda arm: arm["round_s"]),
        "rollout": ratio(lambda arm: arm["rollout_s"]),
        "step": ratio(lambda arm: arm["step_s"]),
        "rollout_per_token": ratio(lambda arm: arm["rollout_s"] / arm["tokens"]),
        "tail": ratio(lambda arm: arm["tail_s"] / arm["tail_tokens"] if per_token else arm["tail_s"]),
        "engine_steps": ratio(lambda arm: arm["decode_steps"]),
        "cpu": ratio(lambda arm: (arm["cpu_s"] or 0) / arm["tokens"]),
    }
    return {
        "gain": {name: None if value is None else value - 1 for name, value in speedups.items()},
        "tail_speedup": speedups["tail"],
        "tail_speedup_is_per_token": per_token,
    }


def _arm(run, first):
    def mean(metric):
        values = [step[metric] for step in run.steps[first:] if metric in step]
        return sum(values) / len(values) if values else None

    rounds = [step["timing_s/gen"] / n for step in run.steps[first:] if (n := step.get("train/num_gen_batches"))]
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
        "round_s": sum(rounds) / len(rounds) if rounds else None,
        "rollout_s": mean("timing_s/gen"),
        "step_s": mean("timing_s/step"),
        "rollout_s_per_step": run.values("timing_s/gen"),
        "tokens_per_training_step": run.values(SPEC + "tokens"),
        "step_s_per_step": run.values("timing_s/step"),
        **totals,
        "tokens_per_step": totals["tokens"] / totals["request_steps"],
        "padding": padding,
        "acceptance_rate": accepted / drafted if drafted else None,
        "switch_on_share": mean(SPEC + "switch_on_share"),
        "draft_ms": mean(SPEC + "draft_ms"),
        "positions": positions(run, first),
        "by_source": sources(run, first),
        "step_costs": step_costs(run, first),
        "index_bytes": [step[SPEC + "index_bytes"] for step in run.steps if SPEC + "index_bytes" in step],
        "rewards": run.values("critic/rewards/mean"),
        "lengths": run.values("response_length/mean"),
    }


def _rollout_ms_a_token(arm, first):
    """Over all training steps but the `first` ones."""
    return 1e3 * (len(arm["rewards"]) - first) * arm["rollout_s"] / arm["tokens"]


def arms_of(summary):
    """The arms of a summary, `off` first."""
    return [arm for arm in ("off", *ARMS) if arm in summary]


def table(summary):
    """The figures as rows: what it is in English and in Chinese, off, and for each other arm its figure and gain."""
    first = summary["first_step_counted"] - 1
    others = [arm for arm in arms_of(summary) if arm != "off"]

    def line(english, chinese, of, form, gain=None):
        def cell(arm):
            value = of(summary[arm])
            return "-" if value is None else format(value, form)

        cells = [cell("off")]
        for arm in others:
            gained = gain and summary[arm]["gain"][gain]
            cells += [cell(arm), "" if gained is None else f"{gained:+.1%}"]
        return [english, chinese, *cells]

    def mean(values):
        return sum(values[first:]) / len(values[first:])

    def cpu_ms_a_token(arm):
        return 1e3 * arm["cpu_s"] / arm["tokens"] if arm["cpu_s"] else None

    def tail_ms_a_token(arm):
        return 1e3 * arm["tail_s"] / arm["tail_tokens"]

    per_token = all(summary[arm]["tail_speedup_is_per_token"] for arm in others)
    padding = [line("of them padding", "其中填充", lambda arm: arm["padding"], ",.0f")]
    rows = [
        line("engine steps", "引擎步数", lambda arm: arm["decode_steps"], ",.0f", "engine_steps"),
        line("tokens a step and request", "每步每请求 token 数", lambda arm: arm["tokens_per_step"], ".3f"),
    ]
    if summary["off"]["round_s"] is not None:
        rows.append(line("round of generation, s", "单轮生成，秒", lambda arm: arm["round_s"], ".2f", "round"))
    rows += [
        line("rollout, s a training step", "rollout，秒/训练步", lambda arm: arm["rollout_s"], ".2f", "rollout"),
        line("training step, s", "训练步，秒", lambda arm: arm["step_s"], ".2f", "step"),
        line(
            "rollout, ms a token",
            "rollout，毫秒/token",
            lambda arm: _rollout_ms_a_token(arm, first),
            ".3f",
            "rollout_per_token",
        ),
        line("tail, s", "长尾，秒", lambda arm: arm["tail_s"], ".2f", None if per_token else "tail"),
    ]
    if per_token:
        rows.append(line("tail, ms a token", "长尾，毫秒/token", tail_ms_a_token, ".3f", "tail"))
    if any(summary[arm]["cpu_s"] for arm in arms_of(summary)):
        rows.append(line("engine's CPU time, ms a token", "引擎的 CPU 时间，毫秒/token", cpu_ms_a_token, ".3f", "cpu"))
    return [
        *rows,
        line("tail, times as fast", "长尾，加速倍数", lambda arm: arm.get("tail_speedup", 1.0), ".2f"),
        line("tokens", "token 数", lambda arm: arm["tokens"], ",.0f"),
        line("draft tokens verified", "验证的草稿 token", lambda arm: arm["drafted"], ",.0f"),
        line("draft tokens accepted", "接受的草稿 token", lambda arm: arm["accepted"], ",.0f"),
        *(padding if any(summary[arm]["padding"] for arm in others) else []),
        line("acceptance", "接受率", lambda arm: arm["acceptance_rate"], ".1%"),
        line("steps with the switch on", "开关开启的步数占比", lambda arm: arm["switch_on_share"], ".1%"),
        line("drafting, ms an engine step", "起草，毫秒/引擎步", lambda arm: arm["draft_ms"], ".3f"),
        line("mean reward", "平均奖励", lambda arm: mean(arm["rewards"]), "+.3f"),
        line("mean answer, tokens", "平均回答长度，token", lambda arm: mean(arm["lengths"]), ".1f"),
    ]


def load_sentence(summary, say=lambda english, chinese: english):
    """What is to be known of the seconds when the machine was busy with other work in some run, else None."""
    loads = {NAMES[arm]: load for arm in arms_of(summary) if (load := summary[arm]["load"])}
    if not any(map(busy, loads.values())):
        return None
    shares = [
        say(
            f"{load['others']:.0%} with {name} (held back by the hypervisor: {load['steal']:.0%})",
            f"{name} 期间 {load['others']:.0%}（被虚拟机管理程序扣留 {load['steal']:.0%}）",
        )
        for name, load in loads.items()
    ]
    return say(
        f"The machine was busy: other processes took a share of its CPU time, {', '.join(shares)}. Times below compare "
        "that load as well; engine steps and tokens a step do not depend on it.",
        f"机器当时繁忙：其他进程占用了部分 CPU 时间，{'，'.join(shares)}。下面的时间也反映了这一负载；"
        "引擎步数与每步 token 数不受影响。",
    )


def rollout_sentence(summary, arm):
    """What a token of the rollout took with `arm` and without, over the training steps that count and in single ones."""
    first, last = summary["first_step_counted"], summary["steps"]
    off, on = (_rollout_ms_a_token(summary[of], first - 1) for of in ("off", arm))
    names = ("rollout_s_per_step", "tokens_per_training_step")
    steps = zip(*(summary[of][name][first - 1 :] for of in ("off", arm) for name in names), strict=True)
    gains = [old * new_tokens / new / tokens - 1 for old, tokens, new, new_tokens in steps if tokens and new]
    return (
        f"A token of the rollout took {on:.3f} ms with {NAMES[arm]}, {off:.3f} ms with SAM off: {summary[arm]['gain']['rollout_per_token']:+.1%} over "
        f"training steps {first} to {last}, from {min(gains):+.1%} to {max(gains):+.1%} in single ones."
    )


def heads(summary):
    """Heads of the columns of `table`, behind the first one."""
    return ["SAM off", *(head for arm in arms_of(summary)[1:] for head in (NAMES[arm], "gain"))]


def text_table(summary):
    """The table as lines of a terminal."""
    rows = [["", *heads(summary)], *([row[0], *row[2:]] for row in table(summary))]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )
