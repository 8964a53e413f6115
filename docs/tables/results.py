# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results.md, docs/accuracy.md and the README, from the records in docs/results."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from tables._records import fixed, output, percent, source, table

CHINESE = {
    "RL answers": "RL 回答",
    "long reasoning": "长推理",
    "code": "代码",
    "noise": "噪声",
    "asynchronous": "异步",
    "synchronous": "同步",
    "one process": "单进程",
    "worker apart": "worker 独立",
    "server": "服务",
    "spread": "分散",
    "sticky": "按 prompt",
    "no bound": "按 prompt，无上界",
    "the article": "文章",
    "all earlier outputs: how many": "先前输出的总数",
    "SD-L, tokens a step": "SD-L，每步 token 数",
    "SD-T, tokens a step": "SD-T，每步 token 数",
    "256 outputs: both trees": "256 条输出：两棵树合用",
    "the global tree alone": "只用全局树",
    "the request's tree alone": "只用自身的树",
    "16 outputs stored": "存 16 条输出",
    "all: n_max = 16, m = 10, c = 64": "全部：n_max = 16，m = 10，c = 64",
    "random choice instead of the trie": "随机选取，不用前缀树",
    "plain": "不起草",
    "all": "全部",
    "round": "一轮生成",
    "rollout": "训练步的 rollout",
    "Qwen3-32B, a customer, 128": "Qwen3-32B，客户场景，128",
}
ENGLISH = {"round": "round of generation", "rollout": "rollout of a training step"}
CLUSTERS = {
    "32b": "Qwen3-32B, 32",
    "235b": "Qwen3-235B-A22B, 128",
    "customer": "Qwen3-32B, a customer, 128",
}
SHOWN = {
    "sd": None,
    "rest": (
        "16 outputs stored",
        "256",
        "all: n_max = 16, m = 10, c = 64",
        "n_max = 2",
        "m = 2",
        "m = 20",
        "c = 8",
        "random choice instead of the trie",
    ),
}
"""Rows of the experiments on recordings that the page shows; the record has the others."""


def word(text: str, language: str) -> str:
    """A name out of a record in the language of the page."""
    if language == "en":
        return ENGLISH.get(text, text)
    return CHINESE.get(text, text.replace("constant", "固定"))


def heads(language: str, english: str, chinese: str) -> list[str]:
    """The heads of a table, written as "a | b | c" in both languages."""
    return [cell.strip() for cell in (english if language == "en" else chinese).split("|")]


def headline(language: str) -> str:
    """Both arms of `make demo`."""
    demo = output("demo")
    off, on, gain = demo["off"], demo["on"], demo["on"]["gain"]

    def per_token(arm: dict[str, Any], seconds: str, tokens: str) -> str:
        return fixed(1e3 * arm[seconds] / arm[tokens], 3)

    lines = (
        ("engine steps", "引擎步数", [f"{arm['decode_steps']:,}" for arm in (off, on)], "engine_steps"),
        ("tokens a step and request", "每条请求每步 token 数", [fixed(a["tokens_per_step"], 3) for a in (off, on)], ""),
        (
            "rollout, ms a token",
            "rollout，每 token ms",
            [fixed(rollout_ms(demo, arm), 3) for arm in (off, on)],
            "rollout_per_token",
        ),
        ("training step, s", "训练步，s", [fixed(arm["step_s"], 2) for arm in (off, on)], "step"),
        (
            "tail, ms a token (at most 8 requests running)",
            "长尾，每 token ms（至多 8 条请求在运行）",
            [per_token(arm, "tail_s", "tail_tokens") for arm in (off, on)],
            "tail",
        ),
    )
    rows = [
        [english if language == "en" else chinese, *cells, percent(gain[key], 1, sign=True) if key else ""]
        for english, chinese, cells, key in lines
    ]
    drafts = ("draft tokens accepted / verified", "接受 / 验证的草稿 token")
    rows.append(
        [drafts[language == "zh"], "-", f"{on['accepted']:,} / {on['drafted']:,}", percent(on["acceptance_rate"])]
    )
    head = heads(language, "| SAM off | SAM on | gain", "| 不开 SAM | 开 SAM | 收益")
    return f"{source(language, 'demo')}\n\n{table(head, rows)}"


def rollout_ms(demo: dict[str, Any], arm: dict[str, Any]) -> float:
    """Milliseconds of rollout a token, over the training steps that count."""
    first = demo["first_step_counted"] - 1
    return 1e3 * sum(arm["rollout_s_per_step"][first:]) / sum(arm["tokens_per_training_step"][first:])


def sampler(language: str) -> str:
    record = output("bench-sampler")
    rows = []
    for case in record["measured"]:
        if case["batch"] in (1, 8, 32, 128):
            step, given, calls = case["ms"]["step"], case["ms"]["given"], case["operations"]
            rows.append([case["batch"], *map(milliseconds, [*step.values(), *given.values()])])
            rows[-1] += ["/".join(f"{count:,}" for count in calls[name]) for name in calls]
    head = heads(
        language,
        "requests | ms: 0.11 | 0.13 | `rejection` | `seeded` | without random numbers: 0.11 | 0.13 | `rejection` | "
        "operators / waits / AICPU: 0.11 | 0.13 | `rejection` | `seeded`",
        "请求 | ms：0.11 | 0.13 | `rejection` | `seeded` | 不计随机数：0.11 | 0.13 | `rejection` | "
        "算子 / 等待 / AICPU：0.11 | 0.13 | `rejection` | `seeded`",
    )
    return f"{source(language, 'bench-sampler')}\n\n{table(head, rows, left=0)}"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.{2 if value >= 10 else 3}f}"


REPLAYED = {
    "engine-replay-rl": "RL answers",
    "engine-replay-reasoning": "long reasoning",
    "engine-replay-code": "code",
    "engine-replay-noise": "noise",
}


def engine_replay(language: str) -> str:
    rows = []
    for record, name in REPLAYED.items():
        replayed = output(record)
        name = f"{word(name, language)}, {replayed['batches']}"
        for arm, values in replayed["arms"].items():
            if arm != "plain":
                gains = [
                    fixed(values[f"{part}_gain_{which}"], 2)
                    for part in ("rollout", "tail")
                    for which in ("median", "worst")
                ]
                shares = [
                    percent(values["accepted_share"], 0),
                    percent(values["sample_share"]),
                    percent(values["draft_share"], 2),
                ]
                rows.append([name, f"`{arm}`", *gains, fixed(values["tokens_per_step"], 2), *shares])
                name = ""
    head = heads(
        language,
        "set, batches | arm | rollout: median | worst | tail: median | worst | tokens a step | accepted | sampling | drafting",
        "数据集，批数 | 对照 | rollout：中位数 | 最差 | 长尾：中位数 | 最差 | 每步 token | 接受 | 采样 | 起草",
    )
    return f"{source(language, *REPLAYED)}\n\n{table(head, rows, left=2)}"


def plan_steps(language: str) -> str:
    rows = []
    for replayed in output("plan-steps"):
        name = word(replayed["set"], language)
        for arm, v in replayed["arms"].items():
            span = f"{100 * v['min_error']:+.1f} .. {percent(v['max_error'], 1, sign=True)}"
            rows.append([name, f"`{arm}`", v["measured"], v["predicted"], percent(v["error"], 1, sign=True), span])
            rows[-1] += [fixed(v["gain"], 2), fixed(v["predicted_gain"], 2)]
            name = ""
    head = heads(
        language,
        "set | arm | measured, s | predicted, s | error | single batches | gain: measured | predicted",
        "数据集 | 对照 | 实测，s | 预测，s | 误差 | 单独各批 | 增益：实测 | 预测",
    )
    return f"{source(language, 'plan-steps')}\n\n{table(head, rows, left=2)}"


def switch_worlds(language: str) -> str:
    found = output("switch-worlds")
    names = heads(
        language,
        "`auto` | `auto`, against an oracle with foresight | `batch`, `threshold` 8 | no drafts",
        "`auto` | `auto`，与有预见的先知相比 | `batch`，`threshold` 8 | 不起草",
    )
    keys = ("regret", "regret_foresight", "regret_batch", "regret_plain")
    rows = [[name, *(percent(share) for share in found[key])] for name, key in zip(names, keys, strict=True)]
    head = heads(language, "| median | 99 % | largest", "| 中位数 | 99 % | 最大")
    return f"{source(language, 'switch-worlds')}\n\n{table(head, rows)}"


def runners(language: str) -> str:
    rows = []
    arms = (
        {"sam, off": "`sam`, off", "sam, on": "`sam`, on"}
        if language == "en"
        else {"sam, off": "`sam`，关", "sam, on": "`sam`，开"}
    )
    found = output("bench-runners")["ms_and_tokens_a_step"]["eager"]
    for batch, turns_of in found.items():
        rows.append([batch])
        for turns in turns_of.values():
            low, middle, high = statistics.quantiles([ms for ms, _ in turns], n=4)
            rows[-1].append(f"{middle:.2f} ({low:.2f}-{high:.2f})")
        gained = statistics.median(tokens for _, tokens in turns_of["sam, on"])
        rows[-1].append(fixed(gained, 2))
    names = [arms.get(arm) or word(arm, language) for arm in next(iter(found.values()))]
    head = [*heads(language, "requests", "请求"), *names, *heads(language, "tokens a step, on", "开：每步 token")]
    return f"{source(language, 'bench-runners')}\n\n{table(head, rows, left=0)}"


def plan_article(language: str) -> str:
    found = output("plan-article")["rows"]
    rows, cluster = [], ""
    for off in found:
        if off["sam"] != "off" or off["what"] == "step":
            continue
        gain = next(r for r in found if (r["cluster"], r["what"], r["sam"]) == (off["cluster"], off["what"], "gain"))
        name = word(CLUSTERS[off["cluster"]], language) if off["cluster"] != cluster else ""
        cluster = off["cluster"]
        fit = {"en": ", fitted", "zh": "，拟合"}[language] if off["fitted"] else ""
        rows.append([name, word(off["what"], language), f"{off['article']:.2f}", f"{off['predicted']:,}{fit}"])
        rows[-1] += [percent(off["error"], 1, sign=True), percent(gain["article"], 2), percent(gain["predicted"])]
        rows[-1] += [f"{100 * gain['low']:.1f} - {percent(gain['high'])}"]
    head = heads(
        language,
        "model, dies | per | without SAM, s: article | predicted | error | gain: article | predicted | 10 - 90 %",
        "模型，die 数 | 项目 | 不用 SAM，s：文章 | 预测 | 误差 | 增益：文章 | 预测 | 10 - 90 %",
    )
    return f"{source(language, 'plan-article')}\n\n{table(head, rows, left=2)}"


def routing(language: str) -> str:
    rows = [
        [
            word(way["way"], language),
            fixed(way["tokens_per_step"], 3),
            *(percent(way[key]) for key in ("acceptance", "from_group", "from_history")),
            *(fixed(way[key], 3) for key in ("imbalance", "worst")),
            percent(way["returned"]),
        ]
        for way in output("routing")["ways"]
    ]
    head = heads(
        language,
        "way | tokens a step | acceptance | from group | from history | imbalance, mean | worst | returned",
        "方式 | 每步 token 数 | 接受率 | 来自组 | 来自历史 | 不均衡，平均 | 最大 | 返回",
    )
    return f"{source(language, 'routing')}\n\n{table(head, rows)}"


def routing_count(language: str) -> str:
    rows = [
        [
            way["replicas"],
            word(way["way"], language),
            fixed(way["imbalance"], 3),
            fixed(way["worst"], 3),
            percent(way["returned"]),
        ]
        for way in output("routing-count")["ways"]
    ]
    head = heads(
        language, "replicas | way | imbalance, mean | worst | returned", "副本数 | 方式 | 不均衡，平均 | 最大 | 返回"
    )
    return f"{source(language, 'routing-count')}\n\n{table(head, rows, left=2)}"


RECORDINGS = ("code", "math-short", "sql", "rl-rollouts")


def of_recordings(experiment: str, language: str) -> str:
    """A table of an experiment with a column for each recording."""
    found = output("papers-recordings")[experiment]
    names = SHOWN[experiment] or found
    rows = [[word(name, language), *(tokens(found[name][column]) for column in RECORDINGS)] for name in names]
    return table(["", *RECORDINGS], rows)


def tokens(value: float | str) -> str:
    """Tokens a step, or a count."""
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else fixed(value, 3)


def papers_sd(language: str) -> str:
    return f"{source(language, 'papers-recordings')}\n\n{of_recordings('sd', language)}"


def papers_rest(language: str) -> str:
    return of_recordings("rest", language)


def papers_gsd(language: str) -> str:
    rows, setting = [], ""
    for row in output("papers-model")["gsd"]:
        if row["setting"].startswith("0.4"):
            continue
        name = "" if row["setting"] == setting else row["setting"]
        setting = row["setting"]
        if language == "zh":
            name = name.replace("the paper", "论文").replace(" and ", " 和 ")
        cells = [
            f"{row['drafted']:g}",
            f"{row['expanded']:g}",
            fixed(row["tokens_per_step"], 3),
            fixed(row["accepted_share"], 3),
        ]
        rows.append([name, row["method"], *cells])
    head = heads(
        language,
        "theta_prob, theta_sib, tau | method | nodes drafted | expanded | tokens a step | accepted share",
        "theta_prob, theta_sib, tau | 方法 | 起草的节点 | 展开 | 每步 token 数 | 接受率",
    )
    return f"{source(language, 'papers-model')}\n\n{table(head, rows, left=2)}"


def papers_positions(language: str) -> str:
    rows, recording = [], ""
    for row in output("papers-article")["positions"]:
        name = "" if row["recording"] == recording else row["recording"]
        recording = row["recording"]
        rule = word(row["rule"], language).replace("blend", "`blend`")
        rows.append([name, rule, *(fixed(value, 3) for value in list(row.values())[2:])])
    columns = [word(name, language) for name in list(row)[2:]]
    head = [*heads(language, "recording | rule", "记录 | 规则"), *columns]
    return f"{source(language, 'papers-article')}\n\n{table(head, rows, left=2)}"


def papers_tails(language: str) -> str:
    rows = [
        [
            name,
            f"{v['steps']:,}",
            f"{v['tail_steps']:,}",
            *(fixed(v[key], 3) for key in ("article", "article_tail", "blend", "blend_tail")),
        ]
        for name, v in output("papers-article")["tails"].items()
    ]
    head = heads(
        language,
        "recording | steps without drafts | of them in the tail | the article's rule: all | tail | `blend`: all | tail",
        "记录 | 不起草的步数 | 其中尾部 | 文章的规则：全部 | 尾部 | `blend`：全部 | 尾部",
    )
    return table(head, rows)


def tree(language: str) -> str:
    rows = []
    for row in output("tree")["rows"]:
        name = word("plain", language) if row["method"] == "plain" else f"`{row['method']}`"
        rows.append(
            [
                name,
                fixed(row["tokens_per_step"], 3),
                f"{row['nodes']:g}",
                tokens(row["precision"] or ""),
                f"{row['speedup']:g}",
            ]
        )
    head = heads(
        language,
        "method | tokens a step | nodes a step | accepted of the nodes | speed-up",
        "方法 | 每步 token 数 | 每步节点数 | 节点接受率 | 加速比",
    )
    return f"{source(language, 'tree')}\n\n{table(head, rows)}"


def evaluation(language: str) -> str:
    found = output("evaluation")
    off, on = found["off"], found["on"]
    to = " to " if language == "en" else " 至 "

    def span(interval: list[float]) -> str:
        return to.join(percent(share) for share in interval)

    names = heads(
        language,
        "pass@1 | 95 % interval | mean answer, tokens | answers cut off | draft tokens accepted / verified",
        "pass@1 | 95 % 区间 | 平均回答长度，token | 被截断的回答 | 接受 / 验证的草稿 token",
    )
    cells = (
        [percent(arm["pass@1"]) for arm in (off, on)],
        [span(arm["interval"]) for arm in (off, on)],
        [fixed(arm["mean_tokens"], 1) for arm in (off, on)],
        [arm["cut_off"] for arm in (off, on)],
        ["-", f"{on['accepted']:,} / {on['verified']:,}"],
    )
    rows = [[name, *both] for name, both in zip(names, cells, strict=True)]
    return f"{source(language, 'evaluation', commands=False)}\n\n{table(heads(language, '| SAM off | SAM on', '| 不开 SAM | 开 SAM'), rows)}"


GOALS = {"off": (1.02, 1.02), "rejection": (1.25, 1.15), "seeded": (1.25, 1.15)}
"""Of bench-host, at 1 and at 32 requests: time of a step beside the same engine without speculation."""
BESIDE = {"off": "plain", "rejection": "plain", "seeded": "plain, seeded"}
VERDICTS = {"en": ("reached", "open", "missed"), "zh": ("达到", "未定", "未达到")}


def ratio(ours: np.ndarray, plain: np.ndarray) -> tuple[float, float, float]:
    """Mean over starts of the median over turns of ours / plain, [starts, turns] each, and its bootstrap interval of 95 %."""
    ratios, rng = ours / plain, np.random.default_rng(0)
    num_starts, num_turns = ratios.shape
    starts = rng.integers(num_starts, size=(2000, num_starts, 1))
    turns = rng.integers(num_turns, size=(2000, num_starts, num_turns))
    low, high = np.percentile(np.median(ratios[starts, turns], axis=2).mean(1), [2.5, 97.5])
    return float(np.median(ratios, axis=1).mean()), float(low), float(high)


def host(language: str) -> str:
    rows = []
    for name, version in (("bench-host-0.11", "0.11"), ("bench-host-0.23", "0.23")):
        for placement, batches in output(name)["ms_a_step"]["npu"].items():
            for batch, starts in batches.items():
                times = {arm: np.array([start[arm] for start in starts]) for arm in starts[0]}
                cells = []
                for arm, goals in GOALS.items():
                    mean, low, high = ratio(times[arm], times[BESIDE[arm]])
                    goal = goals[batch != "1"]
                    verdict = VERDICTS[language][0 if mean <= goal else 1 if low <= goal else 2]
                    cells.append(f"{mean:.3f} ({low:.3f}-{high:.3f}) {verdict}")
                engine = f"{version}, {word(placement, language)}" if batch == "1" else ""
                rows.append([engine, batch, fixed(float(np.median(times["plain"])), 2), *cells])
    head = heads(
        language,
        "engine | requests | no speculation, ms | off (goal 1.02) | `rejection` (1.25, 1.15) | `seeded` (1.25, 1.15)",
        "引擎 | 请求 | 不开投机，ms | 关（目标 1.02） | `rejection`（1.25，1.15） | `seeded`（1.25，1.15）",
    )
    return f"{source(language, 'bench-host-0.11', 'bench-host-0.23')}\n\n{table(head, rows)}"


TABLES = {
    "headline": headline,
    "bench-sampler": sampler,
    "engine-replay": engine_replay,
    "plan-steps": plan_steps,
    "switch-worlds": switch_worlds,
    "bench-runners": runners,
    "bench-host": host,
    "plan-article": plan_article,
    "routing": routing,
    "routing-count": routing_count,
    "papers-sd": papers_sd,
    "papers-rest": papers_rest,
    "papers-gsd": papers_gsd,
    "papers-positions": papers_positions,
    "papers-tails": papers_tails,
    "tree": tree,
    "evaluation": evaluation,
}
