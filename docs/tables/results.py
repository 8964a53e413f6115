# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/results.md, docs/accuracy.md and the README, from the records in docs/results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tables._records import output, source, table
from tables.evidence import WORLDS

from sam_lab.bench.rows import figure
from sam_lab.replay import BINS, geometric_mean

CHINESE = {
    "RL answers, 5": "RL 回答，5",
    "RL answers": "RL 回答",
    "long reasoning, 2": "长推理，2",
    "long reasoning": "长推理",
    "code, 7": "代码，7",
    "code": "代码",
    "noise, 10": "噪声，10",
    "engine steps": "引擎步数",
    "tokens per step and request": "每条请求每步 token 数",
    "tokens per CPU second of the engine": "引擎每 CPU 秒的 token 数",
    "rollout, ms per token": "rollout，每 token ms",
    "training step, s": "训练步，s",
    "tail, ms per token (at most 8 requests running)": "长尾，每 token ms（至多 8 条请求在运行）",
    "draft tokens accepted / verified": "接受 / 验证的草稿 token",
    "`auto`, against an oracle with foresight": "`auto`，与有预见的先知相比",
    "`batch`, `threshold` 8": "`batch`，`threshold` 8",
    "no drafts": "不起草",
    **dict(WORLDS.values()),
    "reached": "达到",
    "open": "未定",
    "missed": "未达到",
    "none": "不保留",
    "oldest": "最旧",
    "newest": "最新",
    "random": "随机",
    "lowest reward": "奖励最低",
    "highest reward": "奖励最高",
    "all": "全部",
    "uninterrupted": "不中断",
    "by name": "按名字",
    "by tokens": "按 token",
    "conversations with tools": "带工具的对话",
    "conversations with tools, one after another": "带工具的对话，先后进行",
    "RL answers, every 256 tokens": "RL 回答，每 256 个 token 一断",
    "RL answers, every 1,024 tokens": "RL 回答，每 1,024 个 token 一断",
    "long reasoning, every 256 tokens": "长推理，每 256 个 token 一断",
    "long reasoning, every 1,024 tokens": "长推理，每 1,024 个 token 一断",
    "spread": "分散",
    "sticky": "按 prompt",
    "sticky, no bound": "按 prompt，无上界",
    "spread, longest mean first": "分散，平均最长者先",
    "spread, longest answer first": "分散，最长回答最长者先",
    "spread, prompts foreseen": "分散，预知每个 prompt",
    "spread, answers foreseen": "分散，预知每条回答",
    "sticky, longest mean first": "按 prompt，平均最长者先",
    "sticky, fewest expected tokens": "按 prompt，给预计 token 最少者",
    "sticky, prompts foreseen": "按 prompt，预知每个 prompt",
    "`auto`, and all long answers": "`auto`，长回答总是起草",
    "the article": "文章",
    "earlier outputs": "先前输出的条数",
    "SD-L, tokens per step": "SD-L，每步 token 数",
    "SD-T, tokens per step": "SD-T，每步 token 数",
    "n_max = 16, m = 10, c = 64": "n_max = 16，m = 10，c = 64",
    "rule `suffix`, tokens per step": "规则 `suffix`，每步 token 数",
    "SD-T / rule `suffix`": "SD-T / 规则 `suffix`",
    "tokens: the task's outputs": "token：本任务的输出",
    "tokens: other tasks' answers": "token：其他任务的回答",
    "the task's outputs": "存本任务的输出",
    "other tasks' answers, as many tokens": "存其他任务的回答，token 数相同",
    "other tasks' answers, all": "存其他任务的回答，全部",
    "both": "两者都存",
    "random choice instead of the trie": "随机选取，不用前缀树",
    "0.2, 0.3, 2 (70B)": "0.2、0.3、2（70B）",
    "0.4, 0.1, 1 (7B, 13B)": "0.4、0.1、1（7B、13B）",
    "0.05, 0.05, 2": "0.05、0.05、2",
    "REST, trie": "REST，前缀树",
    "REST, random": "REST，随机选取",
    "trees accept more than chains (table 2)": "树比链接受得多（表 2）",
    "both trees beat the better one (figure 7)": "两棵树合用优于较好的一棵（图 7）",
    "the global tree beats the request's (figure 7)": "全局树优于请求自己的树（图 7）",
    "more earlier outputs help (figure 8)": "先前输出越多越好（图 8）",
    "the accepted share changes by under 10 % with their number": "接受率随条数变化不到 10 %",
    "longer matches accept more (figure 2 a)": "匹配越长，接受越多（图 2 a）",
    "MAX_SPEC = alpha p beats a constant (figure 2 b)": "MAX_SPEC = alpha p 优于固定上限（图 2 b）",
    "it adapts to answers of another kind (figure 9)": "能适应另一类回答（图 9）",
    "then within 5 % of a tree of these answers": "适应后与用这类回答建的树相差不到 5 %",
    "a larger datastore helps (table 2)": "数据仓越大越好（表 2）",
    "n_max under 6 is slower (figure 3)": "n_max 小于 6 变慢（图 3）",
    "m = 10 suffices: m = 20 gains under 2 %": "m = 10 够用：m = 20 多不到 2 %",
    "c under 48 is slower (figure 12)": "c 小于 48 变慢（图 12）",
    "a datastore of the task gains more than a generic one": "本任务的数据仓优于通用的",
    "the same with as many tokens": "token 数相同时也是",
    "the generic one's gain, of the own one's": "通用数据仓的收益占本任务的比例",
    "80 to 90 % of the matches have 2 to 9 tokens (figure 13)": "80 到 90 % 的匹配有 2 到 9 个 token（图 13）",
    "the trie beats a random choice (table 3)": "前缀树优于随机选取（表 3）",
    "trees accept 10 % more than chains (table 1)": "树的接受比链多 10 %（表 1）",
    "graphs accept 10 % more than chains (table 1)": "图的接受比链多 10 %（表 1）",
    "graphs accept more than trees (table 1)": "图的接受比树多（表 1）",
    "graphs have at most a third of the tree's nodes": "图的节点至多是树的三分之一",
    "drafts with a token behind a merged node: 20 to 40 %": "接受了合并节点之后的 token 的草稿：20 到 40 %",
    "more children accept more: 6 against 1 (figure 5 a): tsd": "子节点越多，接受越多：6 对 1（图 5 a），树",
    "more children accept more: 6 against 1 (figure 5 a): gsd": "子节点越多，接受越多：6 对 1（图 5 a），图",
    "a graph's nodes grow less than a tree's, k = 6": "k = 6 时图的节点比树的少",
    "nodes with tau 4 against 1 (figure 5 b): more": "tau 为 4 时节点比为 1 时多（图 5 b）",
    "tokens a step with tau 4 against 1: fewer": "tau 为 4 时每步 token 数比为 1 时少",
    "with theta_prob 0.4 against 0.05: more": "theta_prob 为 0.4 时比 0.05 时多（图 5 c）",
    "with theta_sib 0.7 against 0.05: fewer": "theta_sib 为 0.7 时比 0.05 时少（图 5 d）",
    "60 to 80 % of a tree's tokens stand on several branches (figure 3)": "树中 60 到 80 % 的 token 在几个分支上（图 3）",
    "40 to 60 % of the accepted tokens are not the first child (figure 7)": "被接受的 token 有 40 到 60 % 不是第一个子节点（图 7）",
    "fewer siblings with theta_sib 0.7 than with 0.1 (figure 8)": "theta_sib 为 0.7 时兄弟节点比 0.1 时少（图 8）",
    "merged nodes differ less with tau 4 than with 1 (table 5)": "tau 为 4 时合并节点的差别比为 1 时小（表 5）",
    **{
        f"merging changes a distribution by under 0.001 nats (table 5): tau {tau}": f"合并对分布的改变不到 0.001 nat（表 5），tau {tau}"
        for tau in (1, 2, 3, 4)
    },
    "plain": "不起草",
    "95 % interval": "95 % 区间",
    "mean answer, tokens": "平均回答长度，token",
    "answers cut off": "被截断的回答",
}
PLACEMENTS = {"one process": "单进程", "worker apart": "worker 独立", "server": "服务"}
CHINESE |= {f"{pin}, {name}": f"{pin}，{PLACEMENTS[name]}" for pin in ("0.11", "0.23") for name in PLACEMENTS}

Row = dict[str, Any]


def show(value: Any, form: str, language: str) -> str:
    """A cell: a dash for None, a text in the page's language, a number in this format."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return CHINESE.get(value, value) if language == "zh" else value
    return format(value, form).replace("%", " %")


@dataclass(frozen=True)
class Table:
    """A table for either language. A name in the first column stands once, above the rows that share it."""

    records: tuple[str, ...]
    """Whose commands, dates and commits stand above; none where another table above has the same record."""
    rows: Callable[[], Iterable[Row]]
    english: str
    chinese: str
    """Heads of the columns, with | between them; an empty one: as in English."""
    cells: str
    """Of each column the row's key, or `key:format` for numbers, with | between them."""
    left: int = 1
    commands: bool = True

    def __call__(self, language: str) -> str:
        heads, chinese, cells = (split(line) for line in (self.english, self.chinese, self.cells))
        if language == "zh":
            heads = [own or head for own, head in zip(chinese, heads, strict=True)]
        lines, above = [], None
        for row in self.rows():
            line = [show(row[key], form, language) for key, _, form in (cell.partition(":") for cell in cells)]
            name, line[0] = line[0], "" if line[0] == above else line[0]
            above = name
            lines.append(line)
        text = table(heads, lines, self.left)
        return f"{source(language, *self.records, commands=self.commands)}\n\n{text}" if self.records else text


def split(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


def headline() -> Iterator[Row]:
    """Both arms of `make demo`."""
    demo = output("demo")
    off, on, gain = demo["off"], demo["on"], demo["on"]["gain"]
    counted = slice(demo["first_step_counted"] - 1, None)

    def row(what: str, of: Callable[[Row], float], form: str, gained: float | None = None) -> Row:
        gain = "" if gained is None else f"{gained:+.1%}".replace("%", " %")
        return {"what": what, "off": format(of(off), form), "on": format(of(on), form), "gain": gain}

    def rollout_ms(arm: Row) -> float:
        return 1e3 * sum(arm["rollout_s_per_step"][counted]) / sum(arm["tokens_per_training_step"][counted])

    yield row("engine steps", lambda arm: arm["decode_steps"], ",", gain["engine_steps"])
    yield row("tokens per step and request", lambda arm: arm["tokens_per_step"], ".3f")
    cpu = f"{gain['cpu']:+.1%}".replace("%", " %")
    yield {"what": "tokens per CPU second of the engine", "off": None, "on": None, "gain": cpu}
    yield row("rollout, ms per token", rollout_ms, ".3f", gain["rollout_per_token"])
    yield row("training step, s", lambda arm: arm["step_s"], ".2f", gain["step"])
    tail = "tail, ms per token (at most 8 requests running)"
    yield row(tail, lambda arm: 1e3 * arm["tail_s"] / arm["tail_tokens"], ".3f", gain["tail"])
    drafts, share = f"{on['accepted']:,} / {on['drafted']:,}", f"{100 * on['acceptance_rate']:.1f} %"
    yield {"what": "draft tokens accepted / verified", "off": None, "on": drafts, "gain": share}


def sampler(record: str) -> Iterator[Row]:
    for case in output(record)["measured"]:
        if case["batch"] in (1, 8, 32, 128):
            times = {
                f"{kind} {name}": figure(ms) for kind in ("step", "given") for name, ms in case["ms"][kind].items()
            }
            calls = {name: "/".join(f"{count:,}" for count in counts) for name, counts in case["operations"].items()}
            yield {"batch": case["batch"]} | times | calls


REPLAYED = {
    "engine-replay-rl": "RL answers",
    "engine-replay-reasoning": "long reasoning",
    "engine-replay-code": "code",
    "engine-replay-noise": "noise",
}


def engine_replay() -> Iterator[Row]:
    for record, name in REPLAYED.items():
        replayed = output(record)
        for arm, values in replayed["arms"].items():
            if arm != "plain":
                yield values | {"set": f"{name}, {replayed['batches']}", "arm": f"`{arm}`"}


ON_GPU = ("plain@async", "off@async", "suffix", "batch@async", "auto@async")


def replay_on_gpu() -> Iterator[Row]:
    arms = output("engine-replay-h100")["arms"]
    for arm in ON_GPU[1:]:
        times = zip(arms["plain@async"]["seconds_by_batch"], arms[arm]["seconds_by_batch"], strict=True)
        gains = {str(number): plain / ours for number, (plain, ours) in enumerate(times, 1)}
        yield arms[arm] | gains | {"arm": f"`{arm}`"}


def steps_on_gpu() -> Iterator[Row]:
    """Medians of a step's milliseconds."""
    arms = output("engine-replay-h100")["arms"]
    for running in arms["plain@async"]["ms_by_running"]:
        yield {"running": running} | {arm: arms[arm]["ms_by_running"][running] for arm in ON_GPU}


def plan_steps() -> Iterator[Row]:
    for replayed in output("plan-steps"):
        for arm, values in replayed["arms"].items():
            span = f"{100 * values['min_error']:+.1f} .. {100 * values['max_error']:+.1f} %"
            yield values | {"set": replayed["set"], "arm": f"`{arm}`", "span": span}


def switch_worlds() -> Iterator[Row]:
    names = {
        "regret": "`auto`",
        "regret_foresight": "`auto`, against an oracle with foresight",
        "regret_batch": "`batch`, `threshold` 8",
        "regret_plain": "no drafts",
    }
    for key, name in names.items():
        yield dict(zip(("name", "median", "99 %", "largest"), (name, *output("switch-worlds")[key]), strict=True))


def switch_devices() -> Iterator[Row]:
    """A row a clock: medians, and the largest of `auto`."""
    for clock, figures in output("switch-worlds-devices").items():
        regrets = {name: figures[name][0] for name in ("regret", "regret_batch", "regret_plain")}
        yield {"name": WORLDS[clock][0], "largest": figures["regret"][2]} | regrets


def runners() -> Iterator[Row]:
    for batch, starts in output("bench-runners")["ms_and_tokens_a_step"]["eager"].items():
        turns = {arm: np.array([start[arm] for start in starts]) for arm in starts[0]}  # [starts, turns, 2]
        row = {"batch": batch, "tokens": float(np.median(turns["sam, on"][:, :, 1]))}
        for arm, found in turns.items():
            low, middle, high = np.quantile(found[:, :, 0], [0.25, 0.5, 0.75])
            row[arm] = f"{middle:.2f} ({low:.2f}-{high:.2f})"
        mean, low, high = ratio(turns["sam, off"][:, :, 0], turns["asynchronous"][:, :, 0])
        yield row | {"ratio": f"{mean:.3f} ({low:.3f}-{high:.3f})", "goal": verdict(mean, low, 1.01)}


def asynchronous(drafter: str) -> Iterator[Row]:
    """Early drafts or late ones, by context and k: shares are geometric means over the sets."""
    found = output("bench-asynchronous")
    verdicts = {row["what"]: "reached" if row["verdict"] == "met" else "missed" for row in found["rows"]}
    by_kind: dict[tuple[str, int], list[Row]] = {}
    for each in found["acceptance"]:
        by_kind.setdefault((each["context"], each["k"]), []).append(each)
    for (context, k), sets in sorted(by_kind.items(), key=lambda item: item[0][1]):
        now, ours = (geometric_mean([each[key] for each in sets]) for key in ("now", drafter))
        shares = {each["set"]: each[drafter] / each["now"] for each in sets}
        worst, median = min(shares, key=shares.__getitem__), statistics.median(shares.values())
        what = f"tokens per step of the synchronous drafter, {drafter}, k={k}, {context}"
        yield {
            "name": f"k={k}, {context}",
            "now": now,
            "ours": ours,
            "share": ours / now,
            "mean goal": verdicts[what],
            "median": median,
            "worst": f"{shares[worst]:.3f} ({worst})",
            "worst goal": verdicts[f"{what}, worst set"],
            "pays": max(0.0, 1 - median),
        }


def late_cost() -> Iterator[Row]:
    by_name: dict[str, Row] = {}
    for row in output("bench-asynchronous")["rows"]:
        if row["section"] == "cost":
            part, requests, k = row["what"].rsplit(", ", 2)
            line = by_name.setdefault(f"{requests}, {k}", {"name": f"{requests.split()[0]}, {k}", "goal": ""})
            line[part] = figure(row["ours"]["median"])
            if row["bound"] is not None:
                line["goal"] = "reached" if row["verdict"] == "met" else "missed"
    yield from by_name.values()


GOALS = {"off": (1.02, 1.02), "rejection": (1.25, 1.15), "seeded": (1.25, 1.15)}
"""Of bench-host, at 1 and at 32 requests: time of a step relative to the same engine without speculation."""
BASELINE = {"off": "plain", "free drafts": "plain", "rejection": "plain", "seeded": "plain, seeded"}


def ratio(ours: np.ndarray, plain: np.ndarray) -> tuple[float, float, float]:
    """Mean over starts of the median over turns of ours / plain, [starts, turns] each, and its bootstrap interval of 95 %."""
    ratios, rng = ours / plain, np.random.default_rng(0)
    num_starts, num_turns = ratios.shape
    starts = rng.integers(num_starts, size=(2000, num_starts, 1))
    turns = rng.integers(num_turns, size=(2000, num_starts, num_turns))
    low, high = np.percentile(np.median(ratios[starts, turns], axis=2).mean(1), [2.5, 97.5])
    return float(np.median(ratios, axis=1).mean()), float(low), float(high)


def verdict(mean: float, low: float, goal: float) -> str:
    """Of a ratio with an interval from `low` on, which may be `goal` at most."""
    return "reached" if mean <= goal else "open" if low <= goal else "missed"


def host() -> Iterator[Row]:
    for version in ("0.11", "0.23"):
        for placement, batches in output(f"bench-host-{version}")["ms_a_step"]["npu"].items():
            for batch, starts in batches.items():
                times = {arm: np.array([start[arm] for start in starts]) for arm in starts[0]}
                row = {"engine": f"{version}, {placement}", "batch": batch, "plain": float(np.median(times["plain"]))}
                for arm, beside in BASELINE.items():
                    mean, low, high = ratio(times[arm], times[beside])
                    row[arm] = f"{mean:.3f} ({low:.3f}-{high:.3f})"
                    if arm in GOALS:
                        row[f"{arm} goal"] = verdict(mean, low, GOALS[arm][batch != "1"])
                yield row


def routing_count() -> Iterator[Row]:
    for record in ("routing-4", "routing-16"):
        counted = output(record)
        yield from ({"replicas": f"{counted['settings']['replicas']}"} | way for way in counted["ways"])


def cell(value: Any) -> str:
    """A count, a figure, or a figure with the ends of its interval."""
    if isinstance(value, list):
        if value[0] >= 10:
            return f"{value[0]:.1f} ({value[1]:.1f}-{value[2]:.1f})"
        digits = 3 if value[2] - value[1] < 0.1 else 2
        return f"{value[0]:.3f} ({value[1]:.{digits}f}-{value[2]:.{digits}f})"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


RECORDINGS = {
    "turns": "conversations with tools",
    "rl": "RL answers",
    "long": "long reasoning",
}


def orders(until: str) -> Iterator[Row]:
    """A row a way of sending, a column a recording: seconds of the first way, of the others their share of them."""
    rows: dict[str, Row] = {}
    for run in output("routing-orders"):
        column = f"{run['recording'].partition('.')[0]}{'-epochs' if run['epochs'] else ''}"
        for way in run["rows"]:
            seconds, ratio, low, high = way[until]
            base = way["way"] == way["base"]
            shown = f"{seconds:,.0f} s" if base else f"{ratio:.2f} ({low:.2f}-{high:.2f})"
            name = way["way"].replace("auto", "`auto`")
            rows.setdefault(name, {"way": name})[column] = shown
    yield from rows.values()


ORDERS = (
    "way | RL, other checkpoints | RL, the same | mathematics, the same | long reasoning, the same",
    "方式 | RL，其他检查点 | RL，同一检查点 | 数学，同一模型 | 长推理，同一模型",
    "way | rl-epochs | rl | math | long",
)


def resumed(*records: str) -> Iterator[Row]:
    """Rows of `sam_lab resumed`; those of one recording, cut and context belong together."""
    for record in records:
        for row in output(record)["rows"]:
            name = RECORDINGS[row["recording"].partition(".")[0]]
            if row["cut"]:
                name += f", every {row['cut']:,} tokens"
            elif output(record)["context"] == "sequential":
                name += ", one after another"
            interval = "" if row["groups"] == "by tokens" else f"{row['low']:.3f} - {row['high']:.3f}"
            yield row | {"name": name, "prompts": f"{row['prompts']:,}", "interval": interval}


def kept() -> Iterator[Row]:
    for row in output("kept")["rows"]:
        interval = "" if row["kept"] == "newest" else f"{row['low']:.3f} - {row['high']:.3f}"
        name = RECORDINGS[row["recording"].partition(".")[0]]
        yield row | {"name": name, "prompts": f"{row['prompts']:,}", "interval": interval}


def recordings(record: str, experiment: str, *names: str) -> Iterator[Row]:
    """Rows of an experiment on recordings, all unless some are named."""
    found = output(record)[experiment]
    for name in names or found:
        yield {"name": name} | {key: cell(value) for key, value in found[name].items()}


def claimed(paper: str, *records: str) -> Iterator[Row]:
    """A row a claim: its value in each recording, after the most outputs where there are several, and the verdicts' numbers."""
    rows: dict[str, Row] = {}
    for found in (found for record in records for found in output(record)["claims"]):
        recording = found["of"].partition(", ")[0]
        if found["paper"] == paper and recording:
            row = rows.setdefault(found["claim"], dict.fromkeys(("code", "math-short", "sql", "rl-rollouts")))
            row[recording] = found
    for claim, row in rows.items():
        values = {name: found and bounded(found) for name, found in row.items()}
        yield {"name": claim} | values | verdicts(found for found in row.values() if found)


def verdicts(rows: Iterable[Row]) -> Row:
    """How often each verdict was given."""
    given = [found["verdict"] for found in rows]
    return {each: given.count(each) for each in ("agrees", "does not", "not shown")}


def bounded(found: Row) -> str:
    """A claim's value and its interval, if there is one."""
    return cell([found["value"], *found["95 %"]]) if found["95 %"] else f"{found['value']:.3f}"


PRUNING = {"0.2": "0.2, 0.3", "0.4": "0.4, 0.1", "0.05": "0.05, 0.05"}


def drafts() -> Iterator[Row]:
    for row in output("papers-model")["gsd"]:
        if row["sampling"] == "greedy":
            paper = {"0.2": " (70B)", "0.4": " (7B, 13B)"}.get(row["theta_prob, theta_sib"].partition(",")[0], "")
            setting = f"{row['theta_prob, theta_sib']}, {row['tau']}{paper}"
            figures = {key: cell(row[key]) for key in ("drafted", "tokens a step", "accepted share")}
            yield row | figures | {"setting": setting}


def widths() -> Iterator[Row]:
    """A row an out-degree k of large trees, by the tree and by the graph."""
    rows: dict[int, Row] = {}
    for found in output("papers-model")["gsd-width"]:
        if found["theta_prob, theta_sib"] == PRUNING["0.05"]:
            row = rows.setdefault(found["k"], {"k": f"{found['k']}"})
            for key in ("drafted", "tokens a step"):
                row[f"{found['method']} {key}"] = cell(found[key])
    yield from rows.values()


def drafts_claimed() -> Iterator[Row]:
    """A row a claim about greedy decoding: its value by theta_prob, and the verdicts' numbers."""
    rows: dict[str, dict[str, Row]] = {}
    for found in output("papers-model")["claims"]:
        of = found["of"].split(", ")
        if found["paper"] != "GSD" or of[0].startswith("T "):
            continue
        of = of[1:] if of[0] == "greedy" else of
        name = found["claim"]
        name += f": {of[-1]}" if "nats" in name or "children" in name else ""
        rows.setdefault(name, {})[of[0] or "0.05"] = found
    for name, row in rows.items():
        values = {column: bounded(row[column]) if column in row else None for column in PRUNING}
        yield {"name": name} | values | verdicts(row.values())


def nucleus() -> Iterator[Row]:
    for row in output("papers-model")["nucleus"]:
        yield {key: value if isinstance(value, str) else cell(value) for key, value in row.items()}


REST = ("n_max = 16, m = 10, c = 64", "n_max = 2", "n_max = 6", "m = 2", "m = 20", "c = 8", "c = 32")
REST += ("random choice instead of the trie", "tokens: the task's outputs", "tokens: other tasks' answers")
REST += ("other tasks' answers, as many tokens", "other tasks' answers, all", "both")


def positions() -> Iterator[Row]:
    for row in output("papers-article")["positions"]:
        figures = {place: None if row[place] is None else cell(row[place]) for place in (*BINS, "all")}
        yield {"recording": row["recording"], "rule": row["rule"].replace("blend", "`blend`")} | figures


def tails() -> Iterator[Row]:
    """A row a recording; intervals where it has more than two batches."""
    for name, row in output("papers-article")["tails"].items():
        shown = {
            key: cell(row[key] if row["batches"] > 2 else row[key][0]) for key in row if isinstance(row[key], list)
        }
        yield {"name": name} | row | shown


def article_rule() -> Iterator[Row]:
    """A row a recording and k."""
    rows: dict[tuple[str, int], Row] = {}
    for found in output("article-rule"):
        row = rows.setdefault((found["recording"], found["k"]), {"recording": found["recording"], "k": found["k"]})
        row[found["rule"]] = found["tokens_per_step"]
    for row in rows.values():
        yield row | {"ratio": row["oldest_full"] / row["oldest"]}


def methods() -> Iterator[Row]:
    for row in output("tree")["rows"]:
        name = row["method"] if row["method"] == "plain" else f"`{row['method']}`"
        precision = "" if row["precision"] is None else row["precision"]
        yield row | {"method": name, "precision": precision, "tokens_per_step": cell(row["tokens_per_step"])}


def evaluation() -> Iterator[Row]:
    found = output("evaluation")
    arms = [found["off"], found["on"]]
    for what, cells in (
        ("pass@1", [f"{100 * arm['pass@1']:.1f} %" for arm in arms]),
        ("95 % interval", ["{:.1f} - {:.1f} %".format(*(100 * end for end in arm["interval"])) for arm in arms]),
        ("mean answer, tokens", [f"{arm['mean_tokens']:.1f}" for arm in arms]),
        ("answers cut off", [f"{arm['cut_off']}" for arm in arms]),
        ("draft tokens accepted / verified", [None, f"{arms[1]['accepted']:,} / {arms[1]['verified']:,}"]),
    ):
        yield {"what": what, "off": cells[0], "on": cells[1]}


HELD_OUT_GOALS = {"request": (1.65, 1.79), "group": (1.83, 2.03), "sequential": (2.02, 2.36)}


def held_out() -> Iterator[Row]:
    """A row a context and k: geometric mean over the recordings, of drafts from all sources and from two."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in output("held-out"):
        sources = "some" if row["drafter"] else "all"
        found.setdefault((row["context"], row["k"]), {}).setdefault(sources, []).append(row["tokens_per_step"])
    for (context, k), figures in found.items():
        means = {sources: geometric_mean(values) for sources, values in figures.items()}
        goal = HELD_OUT_GOALS[context][k == 8]
        reached = "reached" if min(means.values()) >= goal else "missed"
        yield {"name": f"k={k}, {context}", "goal": f"{goal:.2f}", "reached": reached} | means


OFF_ON = ("| SAM off | SAM on", "| 不开 SAM | 开 SAM", "what | off | on")
CLAIMED = (
    "claim | code | math-short | sql | rl-rollouts | agrees | does not | not shown",
    "说法 | | | | | 一致 | 不一致 | 未展示",
    "name | code | math-short | sql | rl-rollouts | agrees:d | does not:d | not shown:d",
)
PAPERS = ("| code | math-short | sql | rl-rollouts", "| | | |", "name | code | math-short | sql | rl-rollouts")
TABLES = {
    "headline": Table(
        ("demo",),
        headline,
        "| SAM off | SAM on | gain",
        "| 不开 SAM | 开 SAM | 收益",
        "what | off | on | gain",
    ),
    **{
        record: Table(
            (record,),
            partial(sampler, record),
            "requests | ms: 0.11 | 0.13 | `rejection` | `seeded` | without random numbers: 0.11 | 0.13 | `rejection` |"
            "operators/waits/AICPU: 0.11 | 0.13 | `rejection` | `seeded`",
            "请求 | ms：0.11 | | | | 不计随机数：0.11 | | | 算子/等待/AICPU：0.11 | | |",
            "batch | step 0.11 | step 0.13 | step rejection | step seeded | given 0.11 | given 0.13 | given rejection |"
            "0.11 | 0.13 | rejection | seeded",
            left=0,
        )
        for record in ("bench-sampler", "bench-sampler-h100")
    },
    "engine-replay": Table(
        tuple(REPLAYED),
        engine_replay,
        "set, batches | arm | rollout: median | worst | tail: median | worst | tokens per step | accepted | sampling |"
        "drafting",
        "数据集，批数 | 对照 | rollout：中位数 | 最差 | 长尾：中位数 | 最差 | 每步 token | 接受 | 采样 | 起草",
        "set | arm | rollout_gain_median:.2f | rollout_gain_worst:.2f | tail_gain_median:.2f | tail_gain_worst:.2f |"
        "tokens_per_step:.2f | accepted_share:.0% | sample_share:.1% | draft_share:.2%",
        left=2,
    ),
    "engine-replay-h100": Table(
        ("engine-replay-h100",),
        replay_on_gpu,
        "arm | rollout: batch 1 | 2 | 3 | tail: median | worst | tokens per step | accepted",
        "对照 | rollout：第 1 批 | 2 | 3 | 长尾：中位数 | 最差 | 每步 token | 接受",
        "arm | 1:.2f | 2:.2f | 3:.2f | tail_gain_median:.2f | tail_gain_worst:.2f | tokens_per_step:.2f | accepted_share:.0%",
    ),
    "engine-replay-h100-steps": Table(
        ("engine-replay-h100",),
        steps_on_gpu,
        f"requests running | {' | '.join(ON_GPU)}",
        "运行中的请求 | | | | |",
        f"running | {' | '.join(f'{arm}:.2f' for arm in ON_GPU)}",
        left=0,
        commands=False,
    ),
    "plan-steps": Table(
        ("plan-steps",),
        plan_steps,
        "set | arm | measured, s | predicted, s | error | single batches | gain: measured | predicted",
        "数据集 | 对照 | 实测，s | 预测，s | 误差 | 单独各批 | 收益：实测 | 预测",
        "set | arm | measured:, | predicted:, | error:+.1% | span | gain:.2f | predicted_gain:.2f",
        left=2,
    ),
    "switch-worlds": Table(
        ("switch-worlds",),
        switch_worlds,
        "| median | 99 % | largest",
        "| 中位数 | | 最大",
        "name | median:.1% | 99 %:.1% | largest:.1%",
    ),
    "switch-worlds-devices": Table(
        ("switch-worlds-devices",),
        switch_devices,
        "clock | `auto`: median | largest | `batch`, `threshold` 8: median | no drafts: median",
        "时钟 | `auto`：中位数 | 最大 | `batch`，`threshold` 8：中位数 | 不起草：中位数",
        "name | regret:.1% | largest:.1% | regret_batch:.1% | regret_plain:.1%",
    ),
    "bench-runners": Table(
        ("bench-runners",),
        runners,
        "requests | asynchronous: plain | `sam`, off | off / plain | goal 1.01 | `sam`, on | synchronous: plain | `sam`, off |"
        "`sam`, on | tokens per step, on",
        "请求 | 异步：不开投机 | `sam`，关 | 关 / 不开投机 | 目标 1.01 | `sam`，开 | 同步：不开投机 | `sam`，关 | `sam`，开 |"
        "开：每步 token",
        "batch | asynchronous | sam, off | ratio | goal | sam, on | synchronous | sam, off, synchronous |"
        "sam, on, synchronous | tokens:.2f",
        left=0,
    ),
    "bench-asynchronous-early": Table(
        (),
        partial(asynchronous, "early"),
        "drafts | tokens per step: indexed first | drafted first | share | goal 0.99 | median | worst set | goal 0.98",
        "草稿 | 每步 token：先索引 | 先起草 | 比例 | 目标 0.99 | 中位数 | 最差数据集 | 目标 0.98",
        "name | now:.3f | ours:.3f | share:.3f | mean goal | median:.3f | worst | worst goal",
    ),
    "bench-asynchronous": Table(
        ("bench-asynchronous",),
        partial(asynchronous, "late"),
        "drafts | tokens per step: synchronous | one step late | share | goal 0.97 | median | worst set | goal 0.93 | pays from",
        "草稿 | 每步 token：同步 | 晚一步 | 比例 | 目标 0.97 | 中位数 | 最差数据集 | 目标 0.93 | 划算的起点",
        "name | now:.3f | ours:.3f | share:.3f | mean goal | median:.3f | worst | worst goal | pays:.1%",
    ),
    "bench-asynchronous-cost": Table(
        (),
        late_cost,
        "requests, k | host | goal 4 | device, on a CPU | synchronous drafter",
        "请求，k | 主机 | 目标 4 | 设备部分，在 CPU 上 | 同步草稿生成器",
        "name | host | goal | device, on a CPU | synchronous",
    ),
    "bench-host": Table(
        ("bench-host-0.11", "bench-host-0.23"),
        host,
        "engine | requests | no speculation, ms | off | goal 1.02 | free drafts | `rejection` | goal 1.25, 1.15 | `seeded` |"
        "goal 1.25, 1.15",
        "引擎 | 请求 | 不开投机，ms | 关 | 目标 1.02 | 不花时间的草稿 | | 目标 1.25，1.15 | | 目标 1.25，1.15",
        "engine | batch | plain:.2f | off | off goal | free drafts | rejection | rejection goal | seeded | seeded goal",
    ),
    "held-out": Table(
        ("held-out",),
        held_out,
        "drafts | tokens per step | without `common` | goal | both",
        "草稿 | 每步 token | 没有 `common` | 目标 | 两者",
        "name | all:.3f | some:.3f | goal | reached",
    ),
    "routing": Table(
        ("routing",),
        lambda: output("routing")["ways"],
        "way | tokens per step | acceptance | from group | from history | imbalance, mean | worst | returned",
        "方式 | 每步 token 数 | 接受率 | 来自组 | 来自历史 | 不均衡，平均 | 最大 | 返回",
        "way | tokens_per_step:.3f | acceptance:.1% | group:.1% | history:.1% | imbalance:.3f | worst:.3f | returned:.1%",
    ),
    "routing-count": Table(
        ("routing-4", "routing-16"),
        routing_count,
        "replicas | way | imbalance, mean | worst | returned",
        "副本数 | 方式 | 不均衡，平均 | 最大 | 返回",
        "replicas | way | imbalance:.3f | worst:.3f | returned:.1%",
        left=2,
    ),
    "routing-orders": Table(("routing-orders",), lambda: orders("all"), *ORDERS),
    "routing-orders-enough": Table((), lambda: orders("enough"), *ORDERS),
    "resumed": Table(
        ("resumed-turns", "resumed-sequential", "resumed-cut"),
        lambda: resumed("resumed-turns", "resumed-sequential", "resumed-cut"),
        "answers | groups | prompts | tokens per step | of by tokens | 95 % interval",
        "回答 | 分组 | prompt 数 | 每步 token 数 | 相对按 token 分组 | 95 % 区间",
        "name | groups | prompts | tokens_per_step:.3f | ratio:.3f | interval",
        left=2,
    ),
    "papers-sd": Table(("papers-suffix",), lambda: recordings("papers-suffix", "sd"), *PAPERS),
    "papers-sd-claims": Table(
        ("papers-recordings",), lambda: claimed("SuffixDecoding", "papers-suffix", "papers-recordings"), *CLAIMED
    ),
    "papers-rest-claims": Table((), lambda: claimed("REST", "papers-recordings"), *CLAIMED),
    "papers-nucleus": Table(
        ("papers-model",),
        nucleus,
        "method | greedy | T 0.8, top-p 0.95 | of greedy | T 0.7, top-p 0.8 | of greedy",
        "方法 | 贪心 | T 0.8，top-p 0.95 | 相对贪心 | T 0.7，top-p 0.8 | 相对贪心",
        "method | greedy | T 0.8, top-p 0.95 | T 0.8, top-p 0.95 / greedy | T 0.7, top-p 0.8 | T 0.7, top-p 0.8 / greedy",
    ),
    "papers-rest": Table((), lambda: recordings("papers-recordings", "rest", *REST), *PAPERS),
    "kept": Table(
        ("kept",),
        kept,
        "answers | kept | prompts | tokens per step | of newest | 95 % interval",
        "回答 | 保留 | prompt 数 | 每步 token 数 | 相对最新 | 95 % 区间",
        "name | kept | prompts | tokens_per_step:.3f | ratio:.3f | interval",
        left=2,
    ),
    "papers-gsd": Table(
        (),
        drafts,
        "theta_prob, theta_sib, tau | method | nodes drafted | expanded | tokens per step | accepted share",
        "theta_prob、theta_sib、tau | 方法 | 起草的节点 | 展开 | 每步 token 数 | 接受率",
        "setting | method | drafted | expanded:.1f | tokens a step | accepted share",
        left=2,
    ),
    "papers-gsd-width": Table(
        (),
        widths,
        "k | tree: nodes drafted | tokens per step | graph: nodes drafted | tokens per step",
        "k | 树：起草的节点 | 每步 token 数 | 图：起草的节点 | 每步 token 数",
        "k | tsd drafted | tsd tokens a step | gsd drafted | gsd tokens a step",
    ),
    "papers-gsd-claims": Table(
        (),
        drafts_claimed,
        "claim | theta_prob 0.2 | 0.4 | 0.05 | agrees | does not | not shown",
        "说法 | theta_prob 0.2 | 0.4 | 0.05 | 一致 | 不一致 | 未展示",
        "name | 0.2 | 0.4 | 0.05 | agrees:d | does not:d | not shown:d",
    ),
    "papers-positions": Table(
        ("papers-article",),
        positions,
        "recording | rule | 0-1k | 1-2k | 2-4k | 4-8k | 8-16k | 16k+ | all",
        "记录 | 规则 | | | | | | | 全部",
        "recording | rule | 0-1k | 1-2k | 2-4k | 4-8k | 8-16k | 16k+ | all",
        left=2,
    ),
    "papers-tails": Table(
        (),
        tails,
        "recording | batches | steps without drafts | in the tail | the article's rule: all | tail | `blend`: all | tail",
        "记录 | 批数 | 不起草的步数 | 其中尾部 | 文章的规则：全部 | 尾部 | `blend`：全部 | 尾部",
        "name | batches | steps:, | tail_steps:, | article | article_tail | blend | blend_tail",
    ),
    "article-rule": Table(
        ("article-rule",),
        article_rule,
        "recording | k | `oldest` | `oldest_full` | ratio",
        "记录 | k | `oldest` | `oldest_full` | 比值",
        "recording | k | oldest:.3f | oldest_full:.3f | ratio:.3f",
    ),
    "tree": Table(
        ("tree",),
        methods,
        "method | tokens per step | nodes per step | accepted of the nodes | speed-up",
        "方法 | 每步 token 数 | 每步节点数 | 节点接受率 | 加速比",
        "method | tokens_per_step | nodes:g | precision:.3f | speedup:g",
    ),
    "evaluation": Table(("evaluation",), evaluation, *OFF_ON, commands=False),
}
