# SPDX-License-Identifier: Apache-2.0
"""The article's curves as numbers, quoted: read off its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CURVES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""By name: `tokens_per_step` (thousands, values), `length` and `reward` of each training step (off, on), `stages` of a
rollout in seconds (off, on: normal, tail). `figure` says which picture and of what; `source` where the pictures are."""
