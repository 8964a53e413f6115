# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results.md and docs/accuracy.md from docs/results, except those of `evidence`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tables._records import Row, Table, output, source, table


def headline() -> Iterator[Row]:
    """Both arms of `make demo`."""
    off, on = output("demo")["off"], output("demo")["on"]

    def gained(name: str) -> str:
        gain = on["gain"][name]
        form = "{gain:+.1%} ({low:+.1%} to {high:+.1%})" if gain["shown"] else "none shown"
        return form.format(**gain).replace("%", " %")

    def row(what: str, of: Callable[[Row], float], form: str, gain: str | None = None) -> Row:
        return {
            "what": what,
            "off": format(of(off), form),
            "on": format(of(on), form),
            "gain": gained(gain) if gain else "",
        }

    yield row("engine steps", lambda arm: arm["decode_steps"], ",", "engine_steps")
    yield row("tokens per request and step", lambda arm: arm["tokens_per_step"], ".3f")
    yield {"what": "tokens per CPU second of the engine", "off": None, "on": None, "gain": gained("cpu")}
    yield row("rollout, ms per token", lambda arm: arm["rollout_ms_per_token"], ".3f", "rollout_per_token")
    yield row("training step, s", lambda arm: arm["step_s"], ".2f", "step")
    tail = "tail, ms per token (at most 8 requests running)"
    yield row(tail, lambda arm: 1e3 * arm["tail_s"] / arm["tail_tokens"], ".3f", "tail")
    drafts, share = f"{on['accepted']:,} / {on['drafted']:,}", f"{100 * on['acceptance_rate']:.1f} %"
    yield {"what": "draft tokens accepted / verified", "off": None, "on": drafts, "gain": share}


ON_GPU = ("plain@async", "off@async", "suffix", "batch@async", "auto@async")


def replay_on_gpu() -> Iterator[Row]:
    arms = output("engine-replay-h100")["arms"]
    for arm in ON_GPU[1:]:
        times = zip(arms["plain@async"]["seconds_by_batch"], arms[arm]["seconds_by_batch"], strict=True)
        gains = {str(number): plain / ours for number, (plain, ours) in enumerate(times, 1)}
        yield arms[arm] | gains | {"arm": f"`{arm}`"}


PLUGIN_HEADS = {
    "en": "arm | RL answers: batch 1 | 2 | long reasoning | ms of a step (rows): {}",
    "zh": "方式 | RL 回答：第 1 批 | 第 2 批 | 长推理 | 单步毫秒数（行数）：{}",
}
PLUGIN_RUNNING = ("4-5", "17-32", "65-128")


def replay_by_plugin(language: str) -> str:
    """Gains of each batch, and step times of RL answers by running requests."""
    replayed, lines = output("engine-replay-h200"), []
    for arm, of_rl in replayed["rl"]["arms"].items():
        seconds = [
            [of_set["arms"][each]["seconds_by_batch"] for each in ("plain", arm)] for of_set in replayed.values()
        ]
        gains = [f"{plain / ours:.2f}" for of_set in seconds for plain, ours in zip(*of_set, strict=True)]
        steps = (of_rl["steps_by_running"].get(running) for running in PLUGIN_RUNNING)
        times = [f"{step['ms']:.1f} ({step['rows']:.0f})" if step else "-" for step in steps]
        lines.append([f"`{arm}`", *gains, *times])
    first, *others = PLUGIN_RUNNING
    head = [*PLUGIN_HEADS[language].format(first).split(" | "), *others]
    return f"{source(language, 'engine-replay-h200')}\n\n{table(head, lines)}"


CLUSTERS = {
    "32b": "Qwen3-32B, 32",
    "235b": "Qwen3-235B-A22B, 128",
    "customer": "Qwen3-32B, a customer, 128",
}
SPANS = {"round": "round of generation", "rollout": "rollout of a training step", "step": "training step"}


def article() -> Iterator[Row]:
    """The article's measurements on its clusters, and the planner's prediction of the gain."""
    found = {(row["of"], row["what"], row["sam"]): row for row in output("plan-article")["rows"]}
    for of, what in dict.fromkeys((of, what) for of, what, _ in found if of in CLUSTERS):
        gain = found[of, what, "gain"]
        yield {
            "of": CLUSTERS[of],
            "what": SPANS[what],
            "off": found[of, what, "off"]["measured"],
            "on": found[of, what, "on"]["measured"],
            "gain": gain["measured"],
            "predicted": "{:.1f} % ({:.1f} - {:.1f})".format(
                *(100 * gain[key] for key in ("predicted", "low", "high"))
            ),
        }


def evaluation(language: str) -> str:
    record = output("evaluation")
    off, on = record["off"], record["on"]
    head, *names = {
        "en": (
            ["", "SAM off", "SAM on"],
            "pass@1",
            "mean answer, tokens",
            "answers cut off",
            "draft tokens accepted / verified",
        ),
        "zh": (
            ["", "不启用 SAM", "启用 SAM"],
            "pass@1",
            "平均回答长度，token",
            "被截断的回答",
            "接受 / 验证的草稿 token",
        ),
    }[language]
    columns = [
        [
            f"{100 * arm['pass@1']:.1f} %",
            f"{arm['mean_tokens']:.1f}",
            arm["cut_off"],
            f"{arm['accepted']:,} / {arm['verified']:,}" if arm is on else "-",
        ]
        for arm in (off, on)
    ]
    return f"{source(language, 'evaluation', commands=False)}\n\n{table(head, zip(names, *columns, strict=True))}"


CHINESE_HEADLINE = {
    "engine steps": "引擎步数",
    "tokens per request and step": "每请求每步 token 数",
    "tokens per CPU second of the engine": "引擎每 CPU 秒的 token 数",
    "rollout, ms per token": "Rollout，毫秒/token",
    "training step, s": "训练步，秒",
    "tail, ms per token (at most 8 requests running)": "长尾（运行中的请求不超过 8 条），毫秒/token",
    "draft tokens accepted / verified": "接受 / 验证的草稿 token",
    "SAM off": "不启用 SAM",
    "SAM on": "启用 SAM",
    "none shown": "不显著",
    "gain": "收益",
    " to ": " 至 ",
}
CHINESE_REPLAY = {
    "arm | rollout: batch 1": "方式 | Rollout：第 1 批",
    "| 2 | 3 | tail: median | worst": "| 第 2 批 | 第 3 批 | 长尾：中位数 | 最差",
    "tokens per step | accepted": "每步 token 数 | 接受率",
}
CHINESE_ARTICLE = {
    "model, dies | per": "模型，die 数 | 范围",
    "without SAM, s | with SAM, s | gain | gain, predicted (10 - 90 %)": (
        "不启用 SAM，秒 | 启用 SAM，秒 | 收益 | 预测的收益（10 - 90 %）"
    ),
    "round of generation": "单轮生成",
    "rollout of a training step": "一个训练步的 Rollout",
    "training step": "训练步",
    "a customer, 128": "某客户，128",
    "B, ": "B，",
}
TABLES = {
    "headline": Table(
        ("demo",), headline, "| SAM off | SAM on | gain", "what | off | on | gain", chinese=CHINESE_HEADLINE
    ),
    "engine-replay-h100": Table(
        ("engine-replay-h100",),
        replay_on_gpu,
        "arm | rollout: batch 1 | 2 | 3 | tail: median | worst | tokens per step | accepted",
        "arm | 1:.2f | 2:.2f | 3:.2f | tail_gain_median:.2f | tail_gain_worst:.2f | tokens_per_step:.2f | "
        "accepted_share:.0%",
        chinese=CHINESE_REPLAY,
    ),
    "engine-replay-h200": replay_by_plugin,
    "article": Table(
        ("plan-article",),
        article,
        "model, dies | per | without SAM, s | with SAM, s | gain | gain, predicted (10 - 90 %)",
        "of | what | off:,.0f | on:,.0f | gain:.2% | predicted",
        left=2,
        commands=False,
        chinese=CHINESE_ARTICLE,
    ),
    "evaluation": evaluation,
}
