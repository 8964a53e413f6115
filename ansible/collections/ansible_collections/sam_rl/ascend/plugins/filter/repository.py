# SPDX-License-Identifier: Apache-2.0
"""Filters that read the request for a run, and the pin sets, so that no version is written a second time."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError


def pin_set(repository: str, name: str) -> dict[str, Any]:
    """The content of patches/NAME/pins.toml."""
    path = Path(str(repository), "patches", str(name), "pins.toml")
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise AnsibleFilterError(f"pin_set {name!r}: {path} cannot be read ({error})") from None


def lasting(request: Mapping, may_change: Iterable[str]) -> dict[str, Any]:
    """Return the request for a run without the overrides of keys that may change when the run is resumed."""
    overrides = [setting for setting in request["overrides"] if re.split(r"[.=\[]", setting)[0] not in may_change]
    return {**request, "overrides": overrides}


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"pin_set": pin_set, "lasting": lasting}
