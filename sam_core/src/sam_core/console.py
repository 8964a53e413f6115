# SPDX-License-Identifier: Apache-2.0
"""What commands write to stderr: progress, and errors as one sentence."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time


class Progress:
    """A progress line on stderr: rewritten in place on a terminal, otherwise a new line at most every 30 s."""

    def __init__(self) -> None:
        self._tty = bool(sys.stderr and sys.stderr.isatty())
        self._last = time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if sys.stderr and now - self._last >= (0.2 if self._tty else 30):
            self._last = now
            print(f"\r\033[K{text}" if self._tty else text, end="" if self._tty else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Call args.run(args) and return its exit status; 2 after an error for the user, 130 after an interrupt.

    Errors for the user are ValueError, ModuleNotFoundError and OSError. Standard output is flushed here, so that a full
    disk behind it is reported too.
    """
    try:
        status: int = args.run(args)
        _flush()
        return status
    except OSError as error:
        name = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {name}{error.strerror or error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            _flush()
    except (ValueError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 2


def _flush() -> None:
    """Flush standard output; if that fails, discard the rest, so that Python's own flush at exit succeeds."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OSError(error.errno, error.strerror, "standard output") from None
