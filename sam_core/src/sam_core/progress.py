# SPDX-License-Identifier: Apache-2.0
"""Progress of a command that takes a while."""

from __future__ import annotations

import sys
import time


class Progress:
    """One line on stderr: rewritten on a terminal, elsewhere a new line every 30 s."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last = time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= (0.2 if self._tty else 30):
            self._last = now
            print(f"\r\033[K{text}" if self._tty else text, end="" if self._tty else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
