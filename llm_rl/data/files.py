# SPDX-License-Identifier: Apache-2.0
"""Read rows from Parquet or JSON Lines files, write Parquet, and hash files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sam_core.files import replacing

from llm_rl.errors import UserError

Row = dict[str, Any]


def rows(path: Path) -> Iterator[tuple[str, Row | str]]:
    """Rows of a Parquet or JSON Lines file. Raises UserError if it cannot be read.

    Yields (place, row), or (place, error message) for a line that is not a JSON object.
    """
    try:
        with open(path, "rb") as file:
            parquet = file.read(4) == b"PAR1"
        yield from _parquet(path) if parquet else _lines(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(4096):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a complete Parquet file: {str(error).splitlines()[0]}") from None


def _lines(path: Path) -> Iterator[tuple[str, Row | str]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # also invalid UTF-8
                row = f"is not JSON ({error})"
            yield f"line {number}", row if isinstance(row, (dict, str)) else "is not a JSON object"


def write_parquet(path: Path, table: Iterable[Row]) -> None:
    """Write rows in verl's schema to `path`, all or nothing."""
    import pyarrow
    from pyarrow import parquet

    text = pyarrow.string()
    schema = pyarrow.schema(
        {
            "data_source": text,
            "prompt": pyarrow.list_(pyarrow.struct({"content": text, "role": text})),
            "ability": text,
            "reward_model": pyarrow.struct({"ground_truth": text, "style": text}),
            "extra_info": pyarrow.struct({"index": text}),
        }
    )
    with replacing(path) as temporary:
        parquet.write_table(pyarrow.Table.from_pylist(list(table), schema), temporary)


def count_prompts(path: Path) -> tuple[int, int]:
    """Number of rows of a Parquet file in verl's schema, and of their distinct last messages; 0 for other schemas."""
    import pyarrow
    from pyarrow import compute, parquet

    rows, prompts = 0, set()
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(1 << 16, columns=["prompt"]):
            messages = batch.column(0)
            last = compute.subtract(messages.offsets.slice(1), 1)
            prompts.update(messages.values.field("content").take(last).to_pylist())
            rows += len(messages)
    except (pyarrow.ArrowException, AttributeError, KeyError, IndexError):
        return 0, 0
    return rows, len(prompts)


def sources(path: Path) -> set[str]:
    """Distinct values of data_source in a Parquet file; empty if it cannot be read or has another schema."""
    import pyarrow
    from pyarrow import compute, parquet

    try:
        column = parquet.read_table(path, columns=["data_source"]).column(0)
        return {value for value in compute.unique(column).to_pylist() if isinstance(value, str)}
    except (OSError, pyarrow.ArrowException, IndexError):
        return set()


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
