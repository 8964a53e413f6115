#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Update the generated tables of the documentation.

A page marks a table with `<!-- begin NAME -->` and `<!-- end NAME -->`. Each module in docs/tables whose name does not
begin with "_" defines `TABLES: dict[str, Callable[[str], str]]`, functions by name of the table. A function returns the
Markdown for a language, "en" or "zh", with links relative to docs/.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sam_core.files import replacing

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
MARKER = re.compile(r"<!-- (?:begin|end) \S+ -->")

Tables = dict[str, Callable[[str], str]]


class DocsError(Exception):
    """An invalid page or module of tables. The message says which one and why."""


def read_tables() -> Tables:
    """All tables of docs/tables, by name. Raises DocsError if two modules define the same name."""
    tables: Tables = {}
    for path in sorted((ROOT / "docs" / "tables").glob("[!_]*.py")):
        module = importlib.import_module(f"tables.{path.stem}")
        if repeated := tables.keys() & module.TABLES.keys():
            raise DocsError(f"{path}: table {min(repeated)!r} is also defined in another module: rename one.")
        tables |= module.TABLES
    return tables


def read_pages(root: Path) -> dict[Path, str]:
    """The pages that may hold tables: docs/*.md and README*.md."""
    return {path: path.read_text() for path in sorted([*root.glob("docs/*.md"), *root.glob("README*.md")])}


def fill(path: Path, text: str, tables: Tables) -> tuple[str, list[str]]:
    """The page with updated tables, and the names of the tables that changed. Raises DocsError."""
    language = "zh" if path.name.endswith(".zh.md") else "en"
    changed = []

    def table(block: re.Match[str]) -> str:
        begin, name, end = block.groups()
        if name not in tables:
            raise DocsError(f"{path}: no module in docs/tables defines {name!r}: add it, or remove the block.")
        try:
            content = tables[name](language).strip("\n")
        except (OSError, ValueError) as error:
            raise DocsError(f"{path}: {name}: {error}") from None
        if path.parent.name != "docs":
            content = re.sub(r"\]\((?!https?:|#)", "](docs/", content)
        new = f"{begin}\n{content}\n\n{end}"
        if new != block[0]:
            changed.append(name)
        return new

    filled = BLOCK.sub(table, text)
    if markers := MARKER.findall(BLOCK.sub("", text)):
        raise DocsError(f"{path}: {markers[0]} has no counterpart: a table must begin and end with the same name.")
    return filled, changed


def generate(root: Path, tables: Tables, check: bool = False) -> list[str]:
    """The stale blocks, as "PAGE: NAME". Unless `check`, rewrites the pages that have any, each atomically."""
    pages = read_pages(root)
    filled = {path: fill(path, text, tables) for path, text in pages.items()}
    used = {name for text in pages.values() for _, name, _ in BLOCK.findall(text)}
    if unused := sorted(tables.keys() - used):
        raise DocsError(f"docs/tables: no page has a block for {unused[0]!r}: add one, or remove the table.")
    for path, (text, changed) in filled.items():
        if changed and not check:
            with replacing(path) as part:
                part.write_text(text)
    return [f"{path.relative_to(root)}: {name}" for path, (_, changed) in filled.items() for name in changed]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is stale")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    try:
        stale = generate(ROOT, read_tables(), args.check)
    except DocsError as error:
        print(f"docs/generate.py: {error}", file=sys.stderr)
        return 2
    for block in stale:
        print(f"{block} is stale: run `make docs`" if args.check else block)
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
