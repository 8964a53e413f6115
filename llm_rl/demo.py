# SPDX-License-Identifier: Apache-2.0
"""The demo: the tiny CPU recipe with SAM off, then on, from the same seed, and what it gained."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from llm_rl import launch
from llm_rl.reports.__main__ import main as report

RECIPE = launch.ROOT / "llm_rl" / "qwen3" / "dapo_qwen3_tiny_cpu.yaml"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m llm_rl.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=launch.ROOT / "runs" / "demo", help="folder of runs and report")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe, for both arms")
    args = parser.parse_args(argv)
    cache = os.environ.setdefault("SAM_RL_CACHE", str(launch.ROOT / ".cache"))
    print("== model", flush=True)
    try:
        made = subprocess.run([sys.executable, "-m", "llm_rl.qwen3.tiny_model", "--out", f"{cache}/qwen3-tiny"])
    except KeyboardInterrupt:
        return 130
    if made.returncode:
        return made.returncode
    for arm, sam in (("off", "off"), ("on", "batch")):
        print(f"== SAM {arm}", flush=True)
        overrides = [*args.overrides, f"sam={sam}"]
        if code := launch.main([str(RECIPE), *overrides, "--run-dir", str(args.out / arm)]):
            return code
    print("== comparison", flush=True)
    return report(["report", "--off", str(args.out / "off"), "--on", str(args.out / "on"), "--out", str(args.out)])


if __name__ == "__main__":
    sys.exit(main())
