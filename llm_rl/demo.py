# SPDX-License-Identifier: Apache-2.0
"""The demo: the tiny CPU recipe with SAM off, then on, from the same seed, and what it gained."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from llm_rl.reports import compare

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "llm_rl" / "qwen3" / "run_dapo_qwen3_tiny_cpu.sh"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m llm_rl.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "demo", help="folder of the runs and the report")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe, for both arms")
    args = parser.parse_args(argv)
    shutil.rmtree(args.out, ignore_errors=True)
    for arm, sam in (("off", "off"), ("on", "batch")):
        print(f"== SAM {arm}", flush=True)
        run = subprocess.run([RECIPE, *args.overrides, f"sam={sam}", "--run-dir", args.out / arm])
        if run.returncode:
            return run.returncode
    print("== comparison", flush=True)
    return compare.main(["--off", str(args.out / "off"), "--on", str(args.out / "on"), "--out", str(args.out)])


if __name__ == "__main__":
    sys.exit(main())
