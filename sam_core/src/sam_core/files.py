# SPDX-License-Identifier: Apache-2.0
"""Files that appear as a whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file's path in the same folder. What the block wrote there replaces `path`, if it raised nothing.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a file as a whole or not at all; raises OSError."""
    with replacing(path) as temporary, open(temporary, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
