# SPDX-License-Identifier: Apache-2.0
"""The filter that writes text into systemd's units."""

from __future__ import annotations

from typing import Any

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "$": "$$", "%": "%%"})


def systemd_word(text: str) -> str:
    """One word of a command in a unit: quoted, with nothing that systemd would expand."""
    return f'"{str(text).translate(ESCAPES)}"'


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"systemd_word": systemd_word}
