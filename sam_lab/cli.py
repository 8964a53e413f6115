# SPDX-License-Identifier: Apache-2.0
"""What the commands share: types of arguments, and results that a later run continues."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from sam_core.files import check_output, write_json


class LabError(ValueError):
    """What is wrong with the input: one sentence for the user."""


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def non_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


# argparse says "invalid NAME value".
positive.__name__, non_negative.__name__ = "positive number", "non-negative number"


def check_outputs(args: argparse.Namespace, *names: str) -> None:
    """Check, as check_output does, the output files that the arguments `names` give, before the work begins.

    Every other path in `args` counts as an input.
    """
    for name in names:
        if path := getattr(args, name):
            others = (value for other, value in vars(args).items() if other != name)
            listed = (each for value in others for each in (value if isinstance(value, list) else [value]))
            check_output(path, [each for each in listed if isinstance(each, Path)])


def digest(path: Path) -> str:
    """16 hexadecimal digits for the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


class Results:
    """Results of a command, a list of dicts in a JSON file that is rewritten after each result.

    Args:
        path: the file; None keeps the results in memory alone.
        resume: keep the results that the file has.

    Raises LabError where there is no file to continue, or something else wrote it, or OSError.
    """

    def __init__(self, path: Path | None, resume: bool) -> None:
        if resume and not path:
            raise LabError("--resume needs --json OUT, the file to continue")
        self.path = path
        self._rows: list[dict[str, Any]] = []
        if resume and path and path.exists():
            try:
                rows = json.loads(path.read_text())
            except ValueError:
                rows = None
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise LabError(f"{path} was not written by this command: name another file, or leave --resume out")
            self._rows = rows

    def find(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        """The first result that has these settings, or None."""
        return next((row for row in self._rows if identity.items() <= row.items()), None)

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        self._rows.append(row)
        if self.path:
            write_json(self.path, self._rows)
        return row
