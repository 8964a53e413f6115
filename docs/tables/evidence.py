# SPDX-License-Identifier: Apache-2.0
"""The tables of the record `evidence`: what each arm gains on recorded answers, by the clocks of several devices."""

from __future__ import annotations

from tables._records import output, source, table

SETS = {
    "rl": ("RL answers", "RL 回答"),
    "long": ("long reasoning", "长推理"),
    "math": ("competition math", "竞赛数学"),
    "code": ("code", "代码"),
}
WORLDS = {
    "cpu": ("CPU, measured", "CPU，实测"),
    "910c-eager": ("910C, eager", "910C，eager"),
    "910c-graph": ("910C, graphs", "910C，图模式"),
    "h100": ("H100, measured", "H100，实测"),
    "article": ("910C, costly verification", "910C，验证开销大"),
}
ARMS = ("oldest:3:8", "auto:3")
HEADS = {
    "en": "answers | clock | `auto` | worst batch, goal 0.98 | best of vLLM's own | best fixed arm | `auto` over it, "
    "goal 1.05",
    "zh": "回答 | 时钟 | `auto` | 最差的一批，目标 0.98 | vLLM 自带方法中最优 | 最优的固定设置 | `auto` 与它之比，"
    "目标 1.05",
}


def interval(values: list[float]) -> str:
    return f"{values[0]:.2f} ({values[1]:.2f}-{values[2]:.2f})"


SHORT = {
    "en": "answers | over no speculation | over the best of vLLM's methods | worst batch, over no speculation",
    "zh": "回答 | 与不启用投机之比 | 与 vLLM 自带最优方法之比 | 最差的一批，与不启用投机之比",
}


def short(language: str) -> str:
    """A row for each set, by the H100's clock: `auto` against plain decoding and the best of vLLM's own methods."""
    record, lines = output("evidence"), []
    for of, titles in SETS.items():
        rows = [r for r in record["rows"] if (r["set"], r["world"]) == (of, "h100")]
        auto = next(row for row in rows if row["arm"] == "auto:15")
        peer = max((r for r in rows if {"ngram", "suffix"} & {*r["best_of"]}), key=lambda row: row["pooled"][0])
        lines.append(
            [titles[language == "zh"], interval(auto["pooled"]), interval(peer["auto_over"]), f"{auto['worst']:.2f}"]
        )
    return f"{source(language, 'evidence')}\n\n{table(SHORT[language].split(' | '), lines)}"


def goals(language: str) -> str:
    """A row for each set and clock: `auto` against the best of vLLM's own methods and the best fixed arm; in bold
    a batch that misses its goal, and a ratio that reaches it."""
    record, at = output("evidence"), language == "zh"
    lines, above = [], None
    for goal in record["goals"]:
        of, clock = goal["set"], goal["world"]
        rows = [r for r in record["rows"] if (r["set"], r["world"]) == (of, clock)]
        peer = max((r for r in rows if {"ngram", "suffix"} & {*r["best_of"]}), key=lambda row: row["pooled"][0])
        lines.append(
            [
                "" if of == above else SETS[of][at],
                WORLDS[clock][at],
                interval(goal["auto"]),
                bold(f"{goal['worst']:.2f}", goal["worst_goal"] == "missed"),
                f"`{peer['arm']}` {peer['pooled'][0]:.2f}",
                f"`{goal['best']}` {goal['best_gain'][0]:.2f}",
                bold(interval(goal["over_best"]), goal["goal"] == "reached"),
            ]
        )
        above = of
    return f"{source(language, 'evidence')}\n\n{table(HEADS[language].split(' | '), lines, 2)}"


def bold(text: str, apply: bool) -> str:
    return f"**{text}**" if apply else text


def arms(language: str) -> str:
    """A row for each set and arm: the pooled gain by every clock."""
    record = output("evidence")
    lines = []
    for of in record["sets"]:
        pooled = {(row["arm"], row["world"]): row["pooled"] for row in record["rows"] if row["set"] == of}
        for arm in ARMS:
            name = SETS[of][0] if arm == ARMS[0] else ""
            lines.append([name, f"`{arm}`", *(interval(pooled[arm, clock]) for clock in record["worlds"])])
    return table(["answers", "arm", *(WORLDS[clock][0] for clock in record["worlds"])], lines, 2)


def foresight(language: str) -> str:
    """A row for each set: what the best fixed arm would gain, had it verified only what is accepted, by the clocks
    whose best arms have no threshold."""
    record = output("evidence")
    limited = {goal["world"] for goal in record["goals"] if goal["best"].count(":") > 1}
    clocks = [clock for clock in record["worlds"] if clock not in limited]
    found = {(goal["set"], goal["world"]): f"{goal['foresight']:.2f}" for goal in record["goals"]}
    lines = [[SETS[of][0], *(found[of, clock] for clock in clocks)] for of in record["sets"]]
    return table(["answers", *(WORLDS[clock][0] for clock in clocks)], lines)


TABLES = {"evidence": goals, "evidence-short": short, "evidence-arms": arms, "evidence-foresight": foresight}
