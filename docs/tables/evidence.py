# SPDX-License-Identifier: Apache-2.0
"""The tables of the record `evidence`: what each arm gains on recorded answers, by the clocks of several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables._records import RESULTS, output, source, table

NAMES = [path.stem for path in sorted(RESULTS.glob("evidence*.json"))]
"""Records, each of some of the sets."""
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
    "article": ("910C, costly verification", "910C，验证昂贵"),
}
BEST = "best k and threshold"
ARMS = (
    "ngram:3",
    "ngram:8",
    "ngram",
    "suffix:3",
    "suffix:8",
    "suffix:15",
    "suffix",
    "oldest:3:8",
    "batch",
    "wide",
    "auto:3",
    "auto:8",
    "auto:15",
    "saved",
)
TEXT = {
    "en": {BEST: "best k and threshold", "reached": "reached", "missed": "missed", "saved": "`auto:15`, saved"},
    "zh": {BEST: "最优的 k 和阈值", "reached": "达到", "missed": "未达到", "saved": "`auto:15`，已保存"},
}
HEADS = {
    "goals": {
        "en": "answers | clock | `auto` | worst batch, goal 0.98 | best of vLLM's own | best fixed arm | `auto` over it | goal 1.05",
        "zh": "回答 | 时钟 | `auto` | 最差的一批，目标 0.98 | vLLM 自带方法中最优 | 最优的固定设置 | `auto` 与它之比 | 目标 1.05",
    },
    "arms": {"en": "answers | arm", "zh": "回答 | 对照"},
    "foresight": {"en": "answers", "zh": "回答"},
    "sets": {
        "en": "answers | batches | prompts | requests | tokens | longest",
        "zh": "回答 | 批数 | prompt | 请求 | token | 最长",
    },
}


def interval(values: list[float] | None) -> str:
    return f"{values[0]:.2f} ({values[1]:.2f}-{values[2]:.2f})" if values else "-"


def split(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


def together() -> dict[str, Any]:
    """The output of all records."""
    outputs = [output(name) for name in NAMES]
    return {
        "sets": {name: of for record in outputs for name, of in record["sets"].items()},
        "worlds": outputs[0]["worlds"],
        **{key: [row for record in outputs for row in record[key]] for key in ("goals", "rows")},
    }


def goals(language: str) -> str:
    """A row for each set and clock: `auto` against the best of vLLM's own methods and the best fixed arm."""
    record, at = together(), language == "zh"
    lines, above = [], None
    comma = ("，" if at else ", ") + TEXT[language]["missed"]
    for goal in record["goals"]:
        of, clock = goal["set"], goal["world"]
        rows = [r for r in record["rows"] if (r["set"], r["world"]) == (of, clock)]
        peers = [r for r in rows if {"ngram", "suffix"} & {*r["best_of"]}]
        peer = max(peers, key=lambda row: row["pooled"][0])
        lines.append(
            [
                "" if of == above else SETS[of][at],
                WORLDS[clock][at],
                interval(goal["auto"]),
                f"{goal['worst']:.2f}" + comma * (goal["worst_goal"] == "missed"),
                f"`{peer['arm']}` {peer['pooled'][0]:.2f}",
                f"`{goal['best']}` {goal['best_gain'][0]:.2f}",
                interval(goal["over_best"]),
                TEXT[language][goal["goal"]],
            ]
        )
        above = of
    return f"{source(language, *NAMES)}\n\n{table(split(HEADS['goals'][language]), lines, 2)}"


def arms(language: str) -> str:
    """A row for each set and arm: the pooled gain by every clock."""
    record, at = together(), language == "zh"
    clocks = list(record["worlds"])
    lines, above = [], None
    for of in record["sets"]:
        for arm in ARMS:
            cells = []
            for clock in clocks:
                rows = [r for r in record["rows"] if (r["set"], r["world"]) == (of, clock)]
                found = [r for r in rows if (r["arm"] == arm if ":" in arm or arm == "saved" else arm in r["best_of"])]
                cells.append(interval(found[0]["pooled"]) if found else "-")
            best = f"`{arm}`, {TEXT[language][BEST]}".replace(", ", "，" if at else ", ")
            label = TEXT[language].get(arm) or (f"`{arm}`" if ":" in arm else best)
            if {*cells} != {"-"}:
                lines.append(["" if of == above else SETS[of][at], label, *cells])
                above = of
    head = [*split(HEADS["arms"][language]), *(WORLDS[clock][at] for clock in clocks)]
    return table(head, lines, 2)


def foresight(language: str) -> str:
    """A row for each set: what the best fixed arm would gain, had it verified only what is accepted, by the clocks whose best
    arms have no threshold."""
    record, at = together(), language == "zh"
    limited = {goal["world"] for goal in record["goals"] if goal["best"].count(":") > 1}
    clocks = [clock for clock in record["worlds"] if clock not in limited]
    found = {(goal["set"], goal["world"]): f"{goal['foresight']:.2f}" for goal in record["goals"]}
    lines = [[SETS[of][at], *(found[of, clock] for clock in clocks)] for of in record["sets"]]
    return table([*split(HEADS["foresight"][language]), *(WORLDS[clock][at] for clock in clocks)], lines)


def sets(language: str) -> str:
    """What was rolled out."""
    of_record = together()["sets"]
    lines = [
        [
            SETS[name][language == "zh"],
            *(f"{of[key]:,}" for key in ("batches", "prompts", "answers", "tokens", "longest")),
        ]
        for name, of in of_record.items()
    ]
    return table(split(HEADS["sets"][language]), lines)


TABLES: dict[str, Callable[[str], Any]] = {"evidence": goals, "evidence-arms": arms, "evidence-sets": sets}
TABLES["evidence-foresight"] = foresight
