# SPDX-License-Identifier: Apache-2.0
"""Records of results, and the Markdown that shows them.

A record, docs/results/NAME.json, holds `command` (one, or a list), `date`, `commit` (whose code ran), `machine`, and
`output`: what the command wrote with --json or --out, or as much of it as the pages use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
CHINESE = {" cores": " 核", "1 thread": "单线程", " at `": " 提交 `", "; ": "；", ": ": "：", ", ": "，", "`.": "`。"}


def read(name: str) -> dict[str, Any]:
    """The record of that name."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def output(name: str) -> Any:
    """What the command of a record wrote."""
    return read(name)["output"]


def source(language: str, *names: str, commands: bool = True) -> str:
    """The commands of these records; then, for each date and machine, links to the records with their commits."""
    lines: list[str] = []
    facts: dict[str, list[str]] = {}
    for name in names:
        record = read(name)
        lines += [record["command"]] if isinstance(record["command"], str) else record["command"]
        link = f"[{name}](results/{name}.json) at `{record['commit']}`"
        facts.setdefault(f"{record['date']}, {record['machine']}", []).append(link)
    block = "".join(f"    {line}\n" for line in lines) + "\n" if commands else ""
    text = "; ".join(f"{when}: {', '.join(links)}" for when, links in facts.items()) + "."
    if language == "zh":
        for english, chinese in CHINESE.items():
            text = text.replace(english, chinese)
    return block + text


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are aligned to the left, the others to the right."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    lines = [head, *rows]
    text = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join([text[0], f"|{'|'.join(marks)}|", *text[1:]])


Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of an English page. A name in the first column stands once, above the rows that share it."""

    records: tuple[str, ...]
    """Whose commands, dates and commits stand above; none where another table above has the same record."""
    rows: Callable[[], Iterable[Row]]
    heads: str
    """Heads of the columns, with | between them."""
    cells: str
    """Of each column the row's key, or `key:format` for numbers, with | between them."""
    left: int = 1
    commands: bool = True

    def __call__(self, language: str = "en") -> str:
        columns = [cell.strip().partition(":") for cell in self.cells.split("|")]
        lines, above = [], None
        for row in self.rows():
            line = [show(row[key], form) for key, _, form in columns]
            name, line[0] = line[0], "" if line[0] == above else line[0]
            above = name
            lines.append(line)
        text = table([head.strip() for head in self.heads.split("|")], lines, self.left)
        return f"{source(language, *self.records, commands=self.commands)}\n\n{text}" if self.records else text


def show(value: Any, form: str) -> str:
    """A cell: a dash for None, a text as it is, a number in this format."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else format(value, form).replace("%", " %")
