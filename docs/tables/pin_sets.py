# SPDX-License-Identifier: Apache-2.0
"""What the pin sets hold and need, from patches/*/pins.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tables._records import table

ROOT = Path(__file__).resolve().parents[2]


def read_pins() -> list[dict[str, Any]]:
    """pins.toml of each pin set, the one with the demo first."""
    pins = [tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("patches/*/pins.toml"))]
    return sorted(pins, key=lambda pin_set: not pin_set.get("demo", False))


def pin_sets(language: str) -> str:
    use = {
        "en": ["GPU, Atlas A3, the demo on a CPU", "Atlas A3", "pin set", "for"],
        "zh": ["GPU、Atlas A3、CPU 上的演示", "Atlas A3", "版本组合", "用于"],
    }[language]
    rows = [
        [f"`{pins['name']}`", *(pins["module"][name]["version"] for name in ("vllm", "vllm_ascend", "verl"))]
        + [use[0] if pins.get("demo") else use[1]]
        for pins in read_pins()
    ]
    return table([use[2], "vLLM", "vllm-ascend", "verl", use[3]], rows, left=5)


def set_up(language: str) -> str:
    head = {
        "en": ["pin set", "download, GB", "disk, GB"],
        "zh": ["版本组合", "下载，GB", "磁盘，GB"],
    }[language]
    rows = [
        [f"`{pins['name']}`", pins["runtime"]["cpu"]["download_gb"], pins["runtime"]["cpu"]["disk_gb"]]
        for pins in read_pins()
    ]
    return table(head, rows)


TABLES = {"pin_sets": pin_sets, "set_up": set_up}
