# SPDX-License-Identifier: Apache-2.0
"""The demo: the tiny CPU recipe with SAM off, then on, from the same seed, and what it gained."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from llm_rl import config, launch
from llm_rl.errors import UserError
from llm_rl.qwen3 import tiny_model
from llm_rl.reports.__main__ import main as report

RECIPE = launch.ROOT / "llm_rl" / "qwen3" / "dapo_qwen3_tiny_cpu.yaml"
ARMS = {"off": "off", "on": "batch"}
DISK = 1e9
"""Bytes that both arms and Ray may write."""


def check(out: Path, overrides: list[str]) -> None:
    """Raise UserError for what would end the demo later: model, settings, disk."""
    if problem := tiny_model.check():
        raise UserError(problem)
    for arm, sam in ARMS.items():
        launch.plan(config.load(RECIPE, [*overrides, f"sam={sam}"]), out / arm)
    free = shutil.disk_usage(out).free
    if free < DISK:
        raise UserError(
            f"{out} has {free / 1e9:.1f} GB of disk left and the demo needs {DISK / 1e9:.0f} GB: free some, "
            "or name another folder by --out"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m llm_rl.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=launch.ROOT / "runs" / "demo", help="folder of runs and report")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe, for both arms")
    args = parser.parse_args(argv)
    try:
        with launch.lock_folder(args.out):
            check(args.out, args.overrides)
            for arm, sam in ARMS.items():
                print(f"== SAM {arm}", flush=True)
                if code := launch.main([str(RECIPE), *args.overrides, f"sam={sam}", "--run-dir", str(args.out / arm)]):
                    return code
            print("== comparison", flush=True)
            return report(["report", f"--off={args.out / 'off'}", f"--on={args.out / 'on'}", f"--out={args.out}"])
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
