# SPDX-License-Identifier: Apache-2.0
"""Convert, check and deduplicate a data set, and record what was done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sam_core.files import check_output, write_json

from llm_rl.data import files, schemas
from llm_rl.data.files import Row
from llm_rl.errors import UserError

MAX_REPORTED = 20
"""Maximum number of bad rows that are reported one by one."""


def convert(
    read: Iterable[tuple[str, Row | str]],
    make: Callable[[Row, int], Row],
    skip_bad: bool,
    keep_duplicates: bool = False,
) -> tuple[list[Row], dict[str, Any]]:
    """Convert rows to verl's schema, and count them for the record.

    Keeps the first row of each prompt, or one copy of it per repetition with `keep_duplicates`. A row that repeats a
    prompt with another answer is bad. Bad rows are reported on stderr and raise UserError unless `skip_bad`. An empty
    result also raises UserError.

    read: (place, row or error message), as from files.rows.
    """
    table: dict[str, tuple[str, Row]] = {}
    copies: dict[str, int] = {}
    bad: list[str] = []
    kept: list[Row] = []
    number = 0
    for number, (place, row) in enumerate(read, 1):
        try:
            if isinstance(row, str):
                raise schemas.RowError(row)
            converted = make(row, number)
            prompt, answer = converted["prompt"][0]["content"], converted["reward_model"]["ground_truth"]
            first, known = table.setdefault(prompt, (place, converted))
            if (other := known["reward_model"]["ground_truth"]) != answer:
                raise schemas.RowError(f"has the prompt of {first} with another answer: {answer!r}, not {other!r}")
            copies[prompt] = copies.get(prompt, 0) + 1
            if keep_duplicates or copies[prompt] == 1:
                kept.append(known)
        except schemas.RowError as error:
            bad.append(f"{place} {error}")
    for sentence in bad[:MAX_REPORTED]:
        print(f"bad row: {sentence}", file=sys.stderr)
    if len(bad) > MAX_REPORTED:
        print(f"... and {len(bad) - MAX_REPORTED} more bad rows", file=sys.stderr)
    if bad and not skip_bad:
        raise UserError(f"{len(bad)} of {number} rows are bad: repair the source, or skip them with --skip-bad")
    if not table:
        raise UserError("no row is left: is this the right file for this data set?")
    counts = {
        "rows_in": number,
        "bad_rows": len(bad),
        "first_bad_rows": bad[:MAX_REPORTED],
        "duplicates_removed": sum(copies.values()) - len(kept),
        "max_copies_of_a_prompt": max(copies.values()),
        "rows": len(kept),
    }
    return kept, counts


def prepare(name: str, source: Path, out: Path, skip_bad: bool, keep_duplicates: bool = False) -> dict[str, Any]:
    """Write `out` and its record `<out>.json`; return the record. Raises UserError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for output in (out, record_of(out)):
            check_output(output, (source,))
    except ValueError as error:
        raise UserError(str(error)) from None
    if not source.is_file():
        raise UserError(f"there is no file {source}: download it, and give --source the Parquet or JSON Lines file")
    table, counts = convert(files.rows(source), schemas.SETS[name], skip_bad, keep_duplicates)
    size, digest = source.stat().st_size, files.sha256(source)
    record = {"data_set": name, "source": str(source), "source_sha256": digest, "source_bytes": size}
    return finish(out, table, record | counts)


def record_of(out: Path) -> Path:
    return out.with_name(out.name + ".json")


def finish(out: Path, table: list[Row], record: dict[str, Any]) -> dict[str, Any]:
    """Write the data set, then its record, which contains the data set's SHA-256; return the record."""
    record_file = record_of(out)
    record_file.unlink(missing_ok=True)
    files.write_parquet(out, table)
    record = record | {"file": out.name, "sha256": files.sha256(out)}
    write_json(record_file, record)
    return record


def check(path: Path) -> None:
    """Raise UserError for a public file that was not prepared: its prompts repeat and it has no record of `prepare`.

    A file with a record must match it.
    """
    record_file = record_of(path)
    if record_file.exists():
        try:
            known = json.loads(record_file.read_text())["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{record_file} is not a record of llm_rl.data: prepare {path.name} again (docs/accuracy.md)"
            ) from None
        if files.sha256(path) != known:
            raise UserError(f"{path} does not match its record {record_file.name}: prepare it again (docs/accuracy.md)")
        return
    rows, prompts = files.count_prompts(path)
    if rows >= 2 * prompts > 0:
        raise UserError(
            f"{path} has {rows:,} rows of {prompts:,} prompts and no record of llm_rl.data: it is an unprepared public "
            "file. `python -m llm_rl.data prepare` removes the repetitions, or keeps them with --keep-duplicates "
            "(docs/accuracy.md)"
        )
