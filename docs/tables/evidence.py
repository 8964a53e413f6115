# SPDX-License-Identifier: Apache-2.0
"""The tables of the record `evidence`: gains of `auto` on recorded answers, with the step times of several devices."""

from __future__ import annotations

from typing import Any

from tables._records import Row, output, source, table

SETS = {
    "rl": ("RL answers", "RL 回答"),
    "long": ("long reasoning", "长推理"),
    "math": ("competition math", "竞赛数学"),
    "code": ("code", "代码"),
}
CLOCKS = {"h100": ("H100",) * 2, "h200": ("H200",) * 2, "article": ("910C, costly verification", "910C，验证较贵")}
AUTO = "auto:15"
RELEASED = {"ngram", "suffix"}
PEERS = RELEASED | {"suffix-device"}
HEADLINE = ("h100", 128)
"""Device and concurrent requests of the table in the README."""
HEADS = {
    "en": "answers | requests | over no speculation | over vLLM's best model-free method | "
    "over its best released method | worst batch over no speculation (16, 128, 256 at once)",
    "zh": "回答 | 请求 | 与不启用投机解码之比 | 与 vLLM 不需要草稿模型的最优方法之比 | 与其中已发布的最优方法之比"
    " | 最差的一批与不启用投机解码之比（同时 16、128、256 条）",
}
GAIN_HEADS = {
    "en": ("answers", "cost model", "`auto`, {} at once", "over vLLM's best model-free"),
    "zh": ("回答", "成本模型", "`auto`，同时 {} 条", "与 vLLM 不需要草稿模型的最优方法之比"),
}


BOTH = "model+auto:15"
DRAFTERS = {"eagle3": "EAGLE-3", "mtp": "MTP"}
DRAFTER_HEADS = {
    "en": "answers | drafter | requests | drafter alone | `sam` alone | both | over the best other | with correlation",
    "zh": "回答 | 草稿模型 | 请求 | 只用草稿模型 | 只用 `sam` | 一起使用 | 与其余最优方法之比 | 相关时的同一比值",
}


def gain(row: Row) -> float:
    return row["pooled"][0]


def interval(values: list[float]) -> str:
    return f"{values[0]:.2f} ({values[1]:.2f}-{values[2]:.2f})"


def best_peer(rows: list[Row], peers: set[str] = PEERS) -> Row:
    """The fastest of vLLM's own model-free methods, tuned on dev prompts."""
    return max((row for row in rows if peers & {*row["best_of"]}), key=lambda row: row["pooled"][0])


def cases() -> dict[tuple[str, str, int], list[Row]]:
    """The rows of each set, device and number of concurrent requests."""
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in output("evidence")["rows"]:
        found.setdefault((row["set"], row["device"], row["running"]), []).append(row)
    return found


def of_arm(rows: list[Row], arm: str) -> Row:
    return next(row for row in rows if row["arm"] == arm)


def headline(language: str) -> str:
    """A row for each set. The worst batch is that over all numbers of concurrent requests."""
    by_case, lines = cases(), []
    clock, running = HEADLINE
    for of, titles in SETS.items():
        rows = by_case[of, *HEADLINE]
        worst = min(of_arm(by_case[of, clock, n], AUTO)["worst"] for n in output("evidence")["settings"]["running"])
        lines.append(
            [
                titles[language == "zh"],
                f"up to {running}" if language == "en" else f"至多 {running}",
                interval(of_arm(rows, AUTO)["pooled"]),
                interval(best_peer(rows)["auto_over"]),
                interval(best_peer(rows, RELEASED)["auto_over"]),
                f"{worst:.2f}",
            ]
        )
    return f"{source(language, 'evidence')}\n\n{table(HEADS[language].split(' | '), lines)}"


def gains(language: str) -> str:
    """A row for each set and device, with the gain of `auto`, and over the best peer, for each number of requests."""
    by_case = cases()
    numbers = output("evidence")["settings"]["running"]
    lines, above = [], None
    for of, titles in SETS.items():
        for clock, names in CLOCKS.items():
            line: list[Any] = ["" if of == above else titles[language == "zh"], names[language == "zh"]]
            for number in numbers:
                rows = by_case[of, clock, number]
                line += [interval(of_arm(rows, AUTO)["pooled"]), interval(best_peer(rows)["auto_over"])]
            lines.append(line)
            above = of
    *heads, gain, lead = GAIN_HEADS[language]
    for number in numbers:
        heads += [gain.format(number), lead]
    return f"{source(language, 'evidence')}\n\n{table(heads, lines, 2)}"


def drafters(language: str) -> str:
    """A row for each set, model drafter and number of concurrent requests, from runs with independent hits and with
    correlated ones, in this order. The best other arm is the fastest of all that do not weigh both drafts."""
    outputs, lines = output("evidence-drafters"), []
    by_case: dict[tuple[str, str, int, bool], list[Row]] = {}
    for each in outputs:
        settings = each["settings"]
        for row in each["rows"]:
            case = row["set"], settings["drafter"], row["running"], settings["correlation"] > 0
            by_case.setdefault(case, []).append(row)
    for of, drafter, running, correlated in by_case:
        if correlated:
            continue
        rows = by_case[of, drafter, running, False]
        over = [
            max((row for row in by_case[of, drafter, running, each] if row["arm"] != BOTH), key=gain)["auto_over"]
            for each in (False, True)
        ]
        alone = max((row for row in rows if "model" in row["best_of"]), key=gain)
        titles = [SETS[of][language == "zh"], DRAFTERS[drafter], str(running)]
        gained = [f"{gain(row):.2f}" for row in (alone, of_arm(rows, AUTO), of_arm(rows, BOTH))]
        lines.append([*titles, *gained, *map(interval, over)])
    lines.sort(key=lambda line: [titles[language == "zh"] for titles in SETS.values()].index(line[0]))
    for line, above in reversed([*zip(lines[1:], lines, strict=False)]):
        line[0] = "" if line[0] == above[0] else line[0]
    heads = DRAFTER_HEADS[language].split(" | ")
    return f"{source(language, 'evidence-drafters')}\n\n{table(heads, lines, 3)}"


TABLES = {
    "evidence": headline,
    "evidence-gains": gains,
    "evidence-drafters": drafters,
}
