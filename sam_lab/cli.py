# SPDX-License-Identifier: Apache-2.0
"""What the commands share: the error, types of arguments, checks of files."""

from __future__ import annotations

import argparse
from pathlib import Path

from sam_core.files import check_output


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
    """Call check_output for the files that the arguments `names` hold, before the work begins.

    Every other path in `args` counts as an input.
    """
    for name in names:
        if path := getattr(args, name):
            others = (value for other, value in vars(args).items() if other != name)
            listed = (each for value in others for each in (value if isinstance(value, list) else [value]))
            check_output(path, [each for each in listed if isinstance(each, Path)])
