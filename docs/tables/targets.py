# SPDX-License-Identifier: Apache-2.0
"""The tables of `make bench`: recorded figures beside the limits in targets.toml as they are now."""

from __future__ import annotations

import re
from typing import Any

from tables._records import output, source, table

from sam_lab.bench.rows import TARGETS, Targets, figure

PEERS = {"python": "Python", "arctic": "arctic", "ngram": "n-gram", "sglang": "SGLang"}
LEFT_OUT = re.compile(r"append, p99|step of 32|period|propose for (1|64) |k=3, with|k=4|k=16|n=8|n=32")
"""Rows that the pages leave out; they are in the record."""

CHINESE = {
    "append to a large group": "向大组追加",
    "append in batches": "成批追加",
    "(append and draft k=1)": "（追加并起草 k=1）",
    "append": "追加",
    "longest pause": "最长停顿",
    "step beside a large history, 64 rows, p99.9": "大历史旁的一步，64 行，99.9 % 分位",
    "step of 64 rows": "64 行的一步",
    "ordinary text": "普通文本",
    "propose for 1024 requests": "`propose`，1024 条请求",
    "propose for 512 requests": "`propose`，512 条请求",
    ": deciding": "：做决定",
    ": waiting": "：等待",
    "one thread": "一个线程",
    "bulk build of 4096 tokens": "一次建立 4096 个 token",
    "memory, request and group with counts": "内存，请求与带计数的组",
    "memory, request": "内存，请求",
    "with group": "加组",
    "with history": "有历史",
    "with corpus": "有语料库",
    "worst set": "最差的集",
    "within a budget, of the best plan": "内存预算内，与最好的方案之比",
    "within a budget, of private requests": "内存预算内，与各自私有之比",
    "corpus, look-up ": "语料库，查找",
    "corpus": "语料库",
    "size": "大小",
    "build": "建立",
    "drafted tokens for the acceptance of newest k=3": "与 `newest` k=3 同样接受时的草稿 token",
    "draft k": "草稿 k",
    "chain": "链",
    "tree": "树",
    "bytes per token": "每 token 字节",
    "us per token": "每 token us",
    "tokens per second": "每秒 token",
    "p99": "99 % 分位",
    "ratio": "比值",
    ", off": "，关",
    ", on": "，开",
    ", ": "，",
}
HEADS = {
    "en": {"limit": "limit (reached)", "without": "without", "missed": ", missed"},
    "zh": {"limit": "界限（达到）", "without": "没有", "missed": "，未达到"},
}


def name(row: dict[str, Any], language: str, unit: bool = True) -> str:
    """A row's name as the page has it."""
    text = row["what"] + (f", {row['unit'].replace(' a ', ' per ')}" if unit and row["unit"] else "")
    if language == "zh":
        for english, chinese in CHINESE.items():
            text = text.replace(english, chinese)
    return re.sub(r"(?<!`)\b(newest|count|blend|auto)\b(?! k=)", r"`\1`", text)


def limit(row: dict[str, Any], language: str) -> str:
    """The limit of a row, in italics if it is a regression bound; in brackets the ratio reached where the limit is one."""
    limits = Targets(TARGETS).entries
    if row["what"] not in limits:
        raise ValueError(f"docs/results has the row {row['what']!r}, {TARGETS.name} has not: record a new run")
    held = limits[row["what"]]
    if "bound" not in held:
        return ""
    reached = row["ours"]["median"]
    text = f"{'≤' if held['better'] == '<=' else '≥'} {held['bound']:,}"
    if "of" in held:
        reached /= row["peers"][held["of"]]["median"]
        text += f" × {held['of']} ({reached:{'.3f' if held['better'] == '>=' else '.2g'}})"
    if held["reason"].startswith("Regression bound"):
        text = f"*{text}*"
    missed = reached > held["bound"] if held["better"] == "<=" else reached < held["bound"]
    return text + (HEADS[language]["missed"] if missed else "")


def rows() -> list[dict[str, Any]]:
    return [row for row in output("bench")["rows"] if not LEFT_OUT.search(row["what"])]


def is_acceptance(row: dict[str, Any]) -> bool:
    return row["section"] != "time and memory"


def times(peer: dict[str, float] | None, ours: dict[str, float]) -> str:
    """How many times ours a peer's figure is."""
    ratio = peer["median"] / ours["median"] if peer else None
    return "" if ratio is None else f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def cost(language: str) -> str:
    """Time and memory: our figure, how many times it each peer's is, and the limit."""
    lines = []
    for row in rows():
        if not is_acceptance(row):
            peers = [times(row["peers"].get(peer), row["ours"]) for peer in PEERS]
            lines.append([name(row, language), figure(row["ours"]["median"]), *peers, limit(row, language)])
    head = ["", "sam_core", *PEERS.values(), HEADS[language]["limit"]]
    return f"{source(language, 'bench')}\n\n{table(head, lines)}"


def accepted(language: str) -> str:
    """Tokens per step of `blend`, of `count` and of each peer, and the limit."""
    lines = []
    for row in rows():
        own = row["peers"].get("count") or row["peers"].get("count k=8")
        if is_acceptance(row) and own:
            peers = [own, *(row["peers"].get(peer) for peer in PEERS)]
            figures = [f"{found['median']:.3f}" if found else "" for found in [row["ours"], *peers]]
            lines.append([name(row, language, unit=False), *figures, limit(row, language)])
    return table(["", "`blend`", "`count`", *PEERS.values(), HEADS[language]["limit"]], lines)


def sources(language: str) -> str:
    """Tokens per step with and without history and corpus; drafted tokens with and without calibrated lengths."""
    lines = []
    for row in rows():
        other = row["peers"].get("without") or row["peers"].get("newest k=3")
        if is_acceptance(row) and not {"count", "count k=8"} & row["peers"].keys():
            note = row["note"] if "worst set" in row["what"] else ""
            figures = [f"{found['median']:.3f}" if found else note for found in (row["ours"], other)]
            lines.append([name(row, language, unit=False), *figures, limit(row, language)])
    return table(["", "`blend`", HEADS[language]["without"], HEADS[language]["limit"]], lines)


TABLES = {"bench-cost": cost, "bench-acceptance": accepted, "bench-sources": sources}
