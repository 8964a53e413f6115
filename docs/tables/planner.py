# SPDX-License-Identifier: Apache-2.0
"""The tables of the planner in docs/results.md: its fit, its predictions beside what others measured, thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from tables._records import output
from tables.results import CHINESE, Row, Table

CHINESE |= {
    "fitted": "拟合",
    "round of generation": "一轮生成",
    "training step": "训练步",
    "inside": "在区间内",
    "**outside**": "**在区间外**",
    "gain": "收益",
    "gain, graphs": "收益，图",
    "off, s": "关，s",
    "on, s": "开，s",
    "on, graphs, s": "开，图，s",
    "GRPO, Qwen3-32B, 32": "GRPO，Qwen3-32B，32",
    "DAPO, Qwen3-32B, 32": "DAPO，Qwen3-32B，32",
    "suffix, HumanEval": "suffix，HumanEval",
    "suffix, GSM8K": "suffix，GSM8K",
    "suffix, AGIEval": "suffix，AGIEval",
    "26 running": "26 条在运行",
    "34 running": "34 条在运行",
    "host time of a launch, us": "主机每次下发的时间，us",
    "spread of the lengths, sigma": "长度的离散程度，sigma",
    "share of the tail in the rollout; the figure has 0.345": "长尾占 rollout 的比例；图中为 0.345",
    "tokens that a request gains in a verifying step of the tail": "长尾中每个验证步每条请求得到的 token 数",
    "**time of a verifying step, relative to a decoding step**": "**验证步的时间，相对于解码步**",
    "the same difference, ms per layer": "两者之差，每层 ms",
    "the same, us for each of four waits per layer": "同上，按每层四次等待，每次 us",
    "rollout of a training step": "训练步的 rollout",
    "Qwen3-32B, 32": "Qwen3-32B，32",
    "Qwen3-235B-A22B, 128": "Qwen3-235B-A22B，128",
    "Qwen3-32B, a customer, 128": "Qwen3-32B，客户场景，128",
}

PREDICTED = {
    "32b": "Qwen3-32B, 32",
    "235b": "Qwen3-235B-A22B, 128",
    "customer": "Qwen3-32B, a customer, 128",
    "grpo": "GRPO, Qwen3-32B, 32",
    "dapo": "DAPO, Qwen3-32B, 32",
    "HumanEval": "suffix, HumanEval",
    "GSM8K": "suffix, GSM8K",
    "AGIEval": "suffix, AGIEval",
}
SPANS = {"round": "round of generation", "rollout": "rollout of a training step", "step": "training step"}
SAM = {
    "off": "off, s",
    "on": "on, s",
    "graph": "on, graphs, s",
    "gain": "gain",
    "gain, on": "gain",
    "gain, graph": "gain, graphs",
}


def plan_article() -> Iterator[Row]:
    """Of the table of suffix decoding the largest loads alone."""
    for row in output("plan-article")["rows"]:
        if row["of"] not in PREDICTED or (
            row["what"].endswith("running") and row["what"].split()[0] not in ("26", "34")
        ):
            continue
        gain = row["kind"] == "gain"
        cells = {key: f"{100 * row[key]:.1f} %" if gain else f"{row[key]:,.0f}" for key in ("measured", "predicted")}
        span = "{:.1f} - {:.1f} %" if gain else "{:,.0f} - {:,.0f}"
        ends = (100 * row["low"], 100 * row["high"]) if gain else (row["low"], row["high"])
        verdict = "fitted" if row["fitted"] else "inside" if row["inside"] else "**outside**"
        names = {"of": PREDICTED[row["of"]], "what": SPANS.get(row["what"], row["what"]), "sam": SAM[row["sam"]]}
        yield names | cells | {"span": span.format(*ends), "verdict": verdict}


FITTED = {
    "launch": ("host time of a launch, us", 1e6),
    "spread": ("spread of the lengths, sigma", 1),
    "tail": ("share of the tail in the rollout; the figure has 0.345", 1),
    "tokens": ("tokens that a request gains in a verifying step of the tail", 1),
    "ratio": ("**time of a verifying step, relative to a decoding step**", 1),
    "verify": ("the same difference, ms per layer", 1e3),
    "us_a_wait": ("the same, us for each of four waits per layer", 1),
}


def plan_fit() -> Iterator[Row]:
    fit = output("plan-article")["fit"]
    for name, (what, factor) in FITTED.items():
        value, low, high = (factor * fit[name][key] for key in ("value", "low", "high"))
        digits = 0 if value > 20 else 2
        yield {"what": what, "value": f"{value:.{digits}f}", "span": f"{low:.{digits}f} - {high:.{digits}f}"}


def plan_thresholds() -> Iterator[Row]:
    gains = {(row["stack"], row["threshold"]): row for row in output("plan-article")["thresholds"]}
    for threshold in dict.fromkeys(threshold for _, threshold in gains):
        row = {"threshold": f"`{threshold}`" if threshold == "auto" else str(threshold)}
        for stack in ("article", "no waits", "graphs"):
            gain = gains[stack, threshold]
            row[stack] = "{:.1f} % ({:.1f} - {:.1f})".format(*(100 * gain[key] for key in ("predicted", "low", "high")))
        yield row


TABLES = {
    "plan-article": Table(
        ("plan-article",),
        plan_article,
        "model, dies | per | SAM | measured | predicted | 10 - 90 % | measured value",
        "模型，die 数 | 项目 | SAM | 实测 | 预测 | | 实测值",
        "of | what | sam | measured | predicted | span | verdict",
        left=3,
    ),
    "plan-fit": Table((), plan_fit, "fitted | value | 10 - 90 %", "拟合量 | 值 |", "what | value | span"),
    "plan-thresholds": Table(
        (),
        plan_thresholds,
        "threshold, k = 3 | a verifying step as in the article's stack | without its waits | without waits, graphs in both arms",
        "threshold，k = 3 | 验证步同文章的软件栈 | 没有这些等待 | 没有等待，两边都用图",
        "threshold | article | no waits | graphs",
    ),
}
