# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab switch-worlds`: how much slower switch `auto` is than an oracle in random worlds.

Each seed draws a machine (what a step costs by its tokens, flat, linear or with a knee, padded to captured sizes or
not; contexts; a constant for verification in a quarter of the worlds; noise, bursts, drift, changes of speed), a load
(a rollout whose batch shrinks, or prompts that arrive all the time) and drafts, whose acceptance comes from recordings.
Regret is the share of the time that an oracle would have saved. The oracle knows all this and chooses the drafts that
give the most tokens per second in each step. Neither the switch nor the oracle knows which prompts the scheduler adds
to a step: the oracle expects the same number as in the latest steps. In the line `with foresight` it knows that too.
One world in ten has a busy machine, whose other work changes the time of each step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.files import write_json

from sam_lab.cli import check_outputs, non_negative, positive
from sam_lab.evidence import devices
from sam_lab.switch_worlds import acceptance
from sam_lab.switch_worlds.world import ARMS, THRESHOLD, Scenario, play

MIN_GAIN = 1.005
"""In a world where the oracle is faster than plain decoding by less than this factor, drafts never pay."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--worlds", type=positive, default=1000, metavar="N", help="default 1000")
    add(
        "--seed",
        type=non_negative,
        default=0,
        metavar="N",
        help="seed of the first world; the next one has the next seed (default 0)",
    )
    add("--device", choices=devices.NAMES, metavar="DEVICE", help=f"costs of a device: {', '.join(devices.NAMES)}")
    add("--json", type=Path, metavar="OUT", help="write all worlds here")


def summary(worlds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and tails over what `play` returned.

    quiet, busy: figures of the worlds with a quiet and with a busy machine; {} if there are none:
        regret, regret_batch, regret_plain: [median, 99th percentile, largest] regret of switch auto, switch batch and
            plain decoding; regret_foresight: that of switch auto against the oracle with foresight.
        never: number of worlds in which drafts never pay.
        plain: [median, smallest] throughput of auto over plain decoding in these worlds.
        gain: [median, 99th percentile] of the oracle's throughput over plain decoding.
    host: mean seconds per step that the switch itself takes, measured.
    """
    figures: dict[str, Any] = {"worlds": len(worlds), "host": float(np.mean([w["host"] for w in worlds]))}
    for kind, busy in (("quiet", False), ("busy", True)):
        figures[kind] = _figures([world for world in worlds if world["busy"] == busy])
    return figures


def _figures(worlds: list[dict[str, Any]]) -> dict[str, Any]:
    if not worlds:
        return {}
    seconds = {name: np.array([w["seconds"][name] for w in worlds]) for name in ARMS}
    never = seconds["plain"] < MIN_GAIN * seconds["best"]
    against = (seconds["plain"] / seconds["auto"])[never]
    figures: dict[str, Any] = {"worlds": len(worlds)}
    for name, than, by in (
        ("regret", "best", "auto"),
        ("regret_foresight", "foresight", "auto"),
        ("regret_batch", "best", "batch"),
        ("regret_plain", "best", "plain"),
    ):
        figures[name] = np.quantile(1 - seconds[than] / seconds[by], (0.5, 0.99, 1)).tolist()
    figures["never"] = int(never.sum())
    figures["plain"] = [float(np.median(against)), float(against.min())] if len(against) else []
    return figures | {"gain": np.quantile(seconds["plain"] / seconds["best"], (0.5, 0.99)).tolist()}


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    check_outputs(args, "json")
    records = acceptance.load()
    worlds = []
    cost = devices.devices([args.device])[0].cost if args.device else None
    progress, start = Progress(), time.monotonic()
    for seed in range(args.seed, args.seed + args.worlds):
        worlds.append({"seed": seed} | play(Scenario(seed, records, cost)))
        progress.show(f"{len(worlds)} of {args.worlds} worlds, {time.monotonic() - start:.0f} s")
    progress.clear()
    figures = summary(worlds)
    print(f"{len(worlds)} worlds, seeds {args.seed} to {seed}; regret against the oracle: median, 99 of 100, largest")
    for kind, of in (("", figures["quiet"]), (", busy machines", figures["busy"])):
        if not of:
            continue
        for name, key in (
            ("switch auto", "regret"),
            ("  with foresight", "regret_foresight"),
            (f"switch batch, threshold {THRESHOLD}", "regret_batch"),
            ("plain decoding", "regret_plain"),
        ):
            print(f"{name + kind:40}" + "".join(f"{x:8.2%}" for x in of[key]))
        print(f"worlds in which drafts never pay{kind}: {of['never']}", end="")
        if of["never"]:
            print("; auto has {:.3f} of plain decoding, in the worst {:.3f}".format(*of["plain"]), end="")
        print()
    print(f"the switch itself takes {1e6 * figures['host']:.0f} us per step")
    if args.json:
        write_json(args.json, figures | {"each": worlds})
    return 0
