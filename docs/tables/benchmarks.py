# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/benchmarks.md, from the records in docs/results."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tables._records import Row, Table, output, source, table

from sam_lab.bench.rows import figure
from sam_lab.replay import geometric_mean

PEERS = {"python": "Python", "arctic": "arctic", "ngram": "n-gram", "sglang": "SGLang"}
LEFT_OUT = re.compile(r"propose for 1024 |k=3, seq|large history|text, newest")
"""Rows of `make bench` that are only in the record, not on the page."""


def bench_rows(section: str) -> list[Row]:
    record = "bench-acceptance" if section == "acceptance" else "bench"
    return [row for row in output(record)["rows"] if row["section"] == section and not LEFT_OUT.search(row["what"])]


def bench_name(row: Row, unit: bool = False) -> str:
    text = row["what"] + (f", {row['unit'].replace(' a ', ' per ')}" if unit and row["unit"] else "")
    return re.sub(r"\b(newest|blend|auto)\b(?! k=)", r"`\1`", text)


def times(peer: dict[str, float] | None, ours: dict[str, float]) -> str:
    """A peer's figure as a multiple of ours."""
    ratio = peer["median"] / ours["median"] if peer else None
    return "" if ratio is None else f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def cost(language: str) -> str:
    """Time and memory: our figure, and each peer's as a multiple of it."""
    lines = []
    for row in bench_rows("time and memory"):
        peers = [times(row["peers"].get(peer), row["ours"]) for peer in PEERS]
        lines.append([bench_name(row, unit=True), figure(row["ours"]["median"]), *peers])
    return f"{source('en', 'bench')}\n\n{table(['', 'sam_core', *PEERS.values()], lines)}"


def accepted(language: str) -> str:
    """Tokens per step of `blend` and of each peer."""
    lines = []
    for row in bench_rows("acceptance"):
        if PEERS.keys() & row["peers"].keys():
            found = [row["ours"], *(row["peers"].get(peer) for peer in PEERS)]
            lines.append([bench_name(row), *(f"{each['median']:.3f}" if each else "" for each in found)])
    return f"{source('en', 'bench-acceptance')}\n\n{table(['', '`blend`', *PEERS.values()], lines)}"


def sources(language: str) -> str:
    """Tokens per step with and without history and corpus, and within a budget of memory."""
    lines = []
    for row in bench_rows("within a budget of memory") + bench_rows("acceptance"):
        if not PEERS.keys() & row["peers"].keys():
            without = row["peers"].get("without")
            figures = [f"{found['median']:.3f}" if found else "" for found in (row["ours"], without)]
            lines.append([bench_name(row), *figures])
    return table(["", "`blend`", "without"], lines)


def sampler() -> Iterator[Row]:
    for case in output("bench-sampler-h100")["measured"]:
        if case["batch"] in (1, 32, 128):
            ms = {f"{name} ms": figure(value) for name, value in case["ms"]["step"].items()}
            calls = {name: "/".join(f"{n:,}" for n in counts) for name, counts in case["operations"].items()}
            yield {"batch": str(case["batch"])} | ms | calls


def asynchronous() -> Iterator[Row]:
    """Drafts made before their tokens are indexed, and drafts made on the device.

    Geometric means over sets, by context and k.
    """
    by_kind: dict[tuple[int, str], list[Row]] = {}
    for each in output("bench-asynchronous")["acceptance"]:
        by_kind.setdefault((each["k"], each["context"]), []).append(each)
    for (k, context), sets in sorted(by_kind.items(), key=lambda item: item[0][0]):
        row = {"name": f"k={k}, {context}", "now": geometric_mean([each["now"] for each in sets])}
        for drafts in ("early", "late"):
            shares = [each[drafts] / each["now"] for each in sets]
            row |= {drafts: geometric_mean(shares), f"{drafts}, worst": min(shares)}
        yield row


def switch_worlds() -> Iterator[Row]:
    def row(name: str, figures: list[float]) -> Row:
        return dict(zip(("name", "median", "99 %", "largest"), (name, *figures), strict=True))

    worlds = output("switch-worlds")
    names = {
        "regret": "`auto`",
        "regret_foresight": "`auto`, against an oracle with foresight",
        "regret_batch": "`batch`, `threshold` 8",
        "regret_plain": "no drafts",
    }
    for key, name in names.items():
        yield row(name, worlds["quiet"][key])
    yield row("`auto`, on a busy machine", worlds["busy"]["regret"])


def plan_thresholds() -> Iterator[Row]:
    gains = {(row["stack"], row["threshold"]): row for row in output("plan-article")["thresholds"]}
    for threshold in dict.fromkeys(threshold for _, threshold in gains):
        row = {"threshold": f"`{threshold}`" if threshold == "auto" else str(threshold)}
        for stack in ("article", "no waits", "graphs"):
            gain = gains[stack, threshold]
            row[stack] = "{:.1f} % ({:.1f} - {:.1f})".format(*(100 * gain[key] for key in ("predicted", "low", "high")))
        yield row


TABLES = {
    "bench-cost": cost,
    "bench-acceptance": accepted,
    "bench-sources": sources,
    "bench-sampler": Table(
        ("bench-sampler-h100",),
        sampler,
        "requests | ms: 0.11 | 0.13 | `rejection` | `seeded` | operators/waits/AICPU: 0.11 | 0.13 | "
        "`rejection` | `seeded`",
        "batch | 0.11 ms | 0.13 ms | rejection ms | seeded ms | 0.11 | 0.13 | rejection | seeded",
    ),
    "bench-asynchronous": Table(
        ("bench-asynchronous",),
        asynchronous,
        "drafts | tokens per step | drafted before indexing: ratio | worst set | made one step late: ratio | worst set",
        "name | now:.3f | early:.3f | early, worst:.3f | late:.3f | late, worst:.3f",
    ),
    "switch-worlds": Table(
        ("switch-worlds",),
        switch_worlds,
        "| median | 99 % | largest",
        "name | median:.1% | 99 %:.1% | largest:.1%",
    ),
    "plan-thresholds": Table(
        ("plan-article",),
        plan_thresholds,
        "threshold, k = 3 | a verifying step as in the article's stack | without its waits | without waits, graphs in "
        "both arms",
        "threshold | article | no waits | graphs",
        commands=False,
    ),
}
