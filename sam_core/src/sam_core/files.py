# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all, and locks between processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
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


def lock(path: Path, timeout_s: float) -> int:
    """Lock a file for this process until the returned descriptor, or any other of the process for that file, is closed.

    Forked children do not hold the lock. Raises BlockingIOError if another process holds it all the time, OSError.
    """
    descriptor, end = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
                time.sleep(min(0.1, timeout_s / 10))
    except OSError:
        os.close(descriptor)
        raise
