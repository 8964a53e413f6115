# SPDX-License-Identifier: Apache-2.0
"""Compare the answers of a run with SAM off and one with SAM on: pass@1, their difference, and a paired test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_rl.errors import UserError
from llm_rl.evaluation import generate, statistics

SAME = (
    *("data_sha256", "model", "engine", "device", "vllm"),
    *("n", "temperature", "top_p", "top_k", "max_tokens", "template"),
)
"""Settings that must be equal in both runs."""
LEVEL = 1 - statistics.CONFIDENCE
POWER = 2.8
"""A test at LEVEL detects a difference of this many standard errors (1.96 + 0.84) in four of five cases."""


def compare(off: Path, on: Path) -> dict[str, Any]:
    """Compare two files of results. Raises UserError if they cannot be compared."""
    (head_off, rows_off), (head_on, rows_on) = generate.read(off), generate.read(on)
    for path, head, rows, expected in ((off, head_off, rows_off, "off"), (on, head_on, rows_on, "batch")):
        if head["sam"] != expected:
            raise UserError(f"{path} was made with --sam {head['sam']}: name the run with --sam off first")
        if len(rows) < head["questions"]:
            raise UserError(f"{path} has {len(rows)} of {head['questions']} questions: call `run` again to complete it")
    if other := [name for name in SAME if head_off.get(name) != head_on.get(name)]:
        raise UserError(f"the runs differ in {', '.join(other)}: run both arms with the same settings")
    if rows_off.keys() != rows_on.keys():
        raise UserError("the runs asked different questions: run both arms with the same --limit")
    speculation = {name: sum(row[name] for row in rows_on.values()) for name in ("drafted", "accepted")}
    if not speculation["accepted"]:
        raise UserError(f"{on}: no draft was accepted, so this run shows nothing about speculation")
    if sum(row["drafted"] for row in rows_off.values()):
        raise UserError(f"{off}: drafts were verified although this run has SAM off")
    n = head_off["n"]
    arms = {"off": list(rows_off.values()), "on": [rows_on[key] for key in rows_off]}
    right = {name: list(map(generate.right_answers, rows)) for name, rows in arms.items()}
    answers = {name: [answer for row in rows for answer in row["answers"]] for name, rows in arms.items()}
    tokens = {name: sum(a["tokens"] for a in answers[name]) / len(answers[name]) for name in answers}
    comparison = {
        "questions": len(rows_off),
        "answers_to_each": n,
        "temperature": head_off["temperature"],
        **{name: {"value": sum(right[name]) / (n * len(rows_off))} for name in arms},
        "difference": vars(statistics.difference(right["off"], right["on"], n)),
        "p_value": statistics.paired_test(right["off"], right["on"]),
        "equal_answers": sum(a["hash"] == b["hash"] for a, b in zip(answers["off"], answers["on"], strict=True)),
        "cut_off": {name: sum(a["finish"] == "length" for a in answers[name]) for name in answers},
        "mean_tokens": tokens,
        "sam": {"k": head_on["k"], **head_on["sam_options"]},
        **speculation,
    }
    return comparison | {"verdict": verdict(comparison), "differs": comparison["p_value"] < LEVEL}


def verdict(comparison: dict[str, Any]) -> str:
    """The result in words, with the differences that the comparison cannot exclude."""
    difference, answers = comparison["difference"], comparison["questions"] * comparison["answers_to_each"]
    if comparison["equal_answers"] == answers:
        return f"All {answers} answers are equal token for token, so speculation changed nothing here."
    interval = f"{100 * difference['low']:+.1f} to {100 * difference['high']:+.1f} points"
    found = f"{100 * difference['value']:+.1f} points with SAM on"
    sure = f"{statistics.CONFIDENCE:.0%}"
    if comparison["p_value"] < LEVEL:
        return (
            f"pass@1 differs: {found} ({sure} interval {interval}, p = {comparison['p_value']:.2g}). "
            f"One in {1 / LEVEL:.0f} pairs of equal arms differs this much by chance: repeat it with another --seed."
        )
    text = f"No significant difference: {found}, p = {comparison['p_value']:.2g}; "
    text += f"the {sure} interval is {interval}."
    if difference["standard_error"]:
        seen = f"{100 * POWER * difference['standard_error']:.1f}"
        text += f" A difference of {seen} points would have been detected in 4 of 5 cases."
    return text


def table(comparison: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = ["| | SAM off | SAM on |", "|---|---:|---:|"]

    def row(name: str, *cells: str) -> None:
        lines.append(f"| {name} | {' | '.join(cells)} |")

    arms = comparison["off"], comparison["on"]
    row("pass@1", *(f"{arm['value']:.1%}" for arm in arms))
    row("mean answer, tokens", *(f"{comparison['mean_tokens'][name]:.1f}" for name in ("off", "on")))
    row("answers cut off", *(str(comparison["cut_off"][name]) for name in ("off", "on")))
    row("draft tokens accepted / verified", "-", f"{comparison['accepted']:,} / {comparison['drafted']:,}")
    answers = comparison["questions"] * comparison["answers_to_each"]
    row("answers equal token for token", "", f"{comparison['equal_answers']} of {answers}")
    return "\n".join(lines)
