# SPDX-License-Identifier: Apache-2.0
"""Contents and requirements of the pin sets, from patches/*/pins.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tables._records import table

ROOT = Path(__file__).resolve().parents[2]


def read_pins() -> list[dict[str, Any]]:
    """pins.toml of each pin set: first those for GPUs, then the demo's, then the others."""
    pins = [tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("patches/*/pins.toml"))]
    return sorted(pins, key=lambda pin_set: ("npu" in pin_set["runtime"], not pin_set.get("demo", False)))


def pin_sets(language: str) -> str:
    name, patches, use, demo = {
        "en": ["pin set", "patches", "for", "Atlas A3, the demo on a CPU"],
        "zh": ["版本组合", "补丁", "用于", "Atlas A3、CPU 上的演示"],
    }[language]
    rows = []
    for pins in read_pins():
        modules = pins["module"]
        versions = [modules.get(module, {}).get("version", "-") for module in ("vllm", "vllm_ascend", "verl")]
        number = len([*ROOT.glob(f"patches/{pins['name']}/*/*.patch")])
        device = "Atlas A3" if "npu" in pins["runtime"] else "GPU"
        rows.append([f"`{pins['name']}`", *versions, number, demo if pins.get("demo") else device])
    return table([name, "vLLM", "vllm-ascend", "verl", patches, use], rows, left=6)


def set_up(language: str) -> str:
    heads = {"en": ["pin set", "download, GB", "disk, GB"], "zh": ["版本组合", "下载，GB", "磁盘，GB"]}
    sizes = {pins["name"]: pins["runtime"]["cpu"] for pins in read_pins()}
    return table(heads[language], [[f"`{name}`", cpu["download_gb"], cpu["disk_gb"]] for name, cpu in sizes.items()])


TABLES = {"pin_sets": pin_sets, "set_up": set_up}
