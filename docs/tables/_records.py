# SPDX-License-Identifier: Apache-2.0
"""Records of results, and their Markdown.

A record, docs/results/NAME.json, has `command` (one, or a list), `date`, `commit` (of the code), `machine`, and
`output`: what the command wrote with --json or --out, or the part that the pages use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def read(name: str) -> dict[str, Any]:
    """The record with this name."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def output(name: str) -> Any:
    """The output of a record's command."""
    return read(name)["output"]


def source(language: str, *names: str, commands: bool = True) -> str:
    """The commands of these records, then links to the records with their commits, by date and machine."""
    signs = (" at {}", ", ", ": ", "; ", ".") if language == "en" else ("（提交 {}）", "，", "：", "；", "。")
    at, comma, colon, semicolon, end = signs
    lines: list[str] = []
    facts: dict[str, list[str]] = {}
    for name in names:
        record = read(name)
        lines += [record["command"]] if isinstance(record["command"], str) else record["command"]
        machine = record["machine"].replace(", ", comma)
        machine = machine if language == "en" else machine.replace(" cores", " 核")
        link = f"[{name}](results/{name}.json)" + at.format(f"`{record['commit']}`")
        facts.setdefault(f"{record['date']}{comma}{machine}", []).append(link)
    block = "".join(f"    {line}\n" for line in lines) + "\n" if commands else ""
    return block + semicolon.join(f"{when}{colon}{comma.join(links)}" for when, links in facts.items()) + end


def check_keys(texts: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise ValueError unless the dictionary of texts that `texts` names has exactly the wanted keys."""
    if stale := {*found} - {*wanted}:
        raise ValueError(f"{texts} has the key {min(stale)!r}, which no English text has: remove it.")
    if missing := {*wanted} - {*found}:
        raise ValueError(f"{texts} lacks the key {min(missing)!r}: add it.")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are left-aligned, the others right-aligned."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    lines = [head, *rows]
    text = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join([text[0], f"|{'|'.join(marks)}|", *text[1:]])


Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of figures. Rows with the same name in the first column show it once, in their first row."""

    records: tuple[str, ...]
    """Records whose commands, dates and commits are shown above the table; none if a table above shows them."""
    rows: Callable[[], Iterable[Row]]
    heads: str
    """Column heads, separated by |."""
    cells: str
    """For each column the row's key, or `key:format` for numbers, separated by |."""
    left: int = 1
    commands: bool = True
    chinese: dict[str, str] = field(default_factory=dict)
    """The words of the table in Chinese, replaced in this order."""

    def __call__(self, language: str = "en") -> str:
        columns = [cell.strip().partition(":") for cell in self.cells.split("|")]
        lines, above = [], None
        for row in self.rows():
            line = [show(row[key], form) for key, _, form in columns]
            name, line[0] = line[0], "" if line[0] == above else line[0]
            above = name
            lines.append(line)
        text = table([head.strip() for head in self.heads.split("|")], lines, self.left)
        for english, chinese in self.chinese.items() if language == "zh" else ():
            if english not in text:
                raise ValueError(f"no English text has {english!r}: remove it from the table's Chinese words.")
            text = text.replace(english, chinese)
        return f"{source(language, *self.records, commands=self.commands)}\n\n{text}" if self.records else text


def show(value: Any, form: str) -> str:
    """A cell: a dash for None, a text unchanged, a number in this format."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form).replace("%", " %")
