# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab plan`: predict how long a recipe's rollout takes without and with SAM, before it runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import write_json

from llm_rl import config, layout
from llm_rl.recipe import Recipe
from llm_rl.shape import SHAPES, Shape, read_shape, why_unknown
from sam_lab.cli import LabError, check_outputs, positive
from sam_lab.cost import DIES, Cost, Die, fitted, measured, roofline
from sam_lab.plan import figure, words
from sam_lab.plan.acceptance import recorded
from sam_lab.plan.lengths import Lengths
from sam_lab.plan.step import SPREAD, Setup, setup
from sam_lab.plan.study import Inputs, study
from sam_lab.recordings import DATA, read_answers

RECORDING = DATA / "reason-long-groups.jsonl.gz"
EPILOG = """\
the model:
  One round of generation is simulated on every engine, event by event: requests wait for a slot (max_num_seqs) and for
  memory for keys and values, are preempted when memory runs out, and get 1 + accepted tokens per step. A step takes
  the host's time to launch it (eager mode) or the device's time to read and compute, whichever is longer. The step adds
  further rounds, the exchange of weights, and training. Compared are off, batch (with the recipe's threshold and k, and
  with all others), and auto (sam_core's budget, on drafts of the recording).

Ranges: all assumptions are drawn --draws times, uniformly between bounds, and the 10 to 90 % of the results are shown.
The bounds for a recipe are: lengths x 0.8 to 1.2; accepted tokens x 0.7 to 1.8, with a recording of your own to 1.3;
the reached shares of the device's bandwidth x 0.75 to 1.2 (weights) and 0.6 to 1.4 (contexts); launches x 0.8 to 1.2;
the latency of an all-reduce x 0.4 to 2, of an exchange x 0.5 to 3; attention's cost of a draft token 0 to 2 times its
request's context; the extra time of a verifying step from 0 to that of the article's stack (910C); costs that were
fitted to a replay x 0.95 to 1.05.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", type=Path, help="a recipe's YAML, see llm_rl/qwen3")
    add("overrides", nargs="*", metavar="key=value", help="as for the recipe's script")
    add("--mean", type=float, metavar="N", help="mean tokens of an answer; default: rollout.expected_length")
    spread = "standard deviation of the lengths' logarithm (%(default)s)"
    add("--spread", type=float, default=SPREAD, metavar="S", help=spread)
    add("--acceptance", type=Path, metavar="FILE", help="a recording; default: the repository's of long reasoning")
    add("--cost", type=Path, metavar="FILE", help="fit the cost of a step to an engine replay's steps.json instead")
    kept = "share of the groups that dynamic sampling keeps (%(default)s)"
    add("--kept", type=float, default=0.6, metavar="P", help=kept)
    add("--draws", type=positive, default=10, metavar="N", help="samples of the assumptions (%(default)s)")
    add("--picture", type=Path, metavar="PNG", help="draw running requests and speed by threshold and k")
    add("--json", type=Path, metavar="OUT", help="write all figures here")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    check_outputs(args, "json", "picture")
    if not 0 < args.kept <= 1:
        raise LabError(f"--kept must be above 0 and at most 1, got {args.kept:g}")
    if not 0 < args.spread < inf:
        raise LabError(f"--spread must be above 0, got {args.spread:g}")
    if args.mean is not None and not 1 <= args.mean < inf:
        raise LabError(f"--mean {args.mean:g}: an answer has at least 1 token")
    recipe = config.load(args.recipe, args.overrides)
    shape = read_shape(Path(recipe.model.path))
    if shape is None:
        names = ", ".join(SHAPES)
        raise LabError(
            f"the shape of {recipe.model.path} is not known ({why_unknown(Path(recipe.model.path))}): put a model of a "
            f"known architecture there, or name its folder as one of {names}"
        )
    layout.check_sizes(recipe, shape)
    sam = recipe.options
    plan = setup(recipe, shape, sam.threshold, recipe.sam_options["k"], args.kept)
    if recipe.cluster.device == "cuda":  # as the 910C's, which is fitted, by what both compute at most
        plan = replace(plan, training=plan.training * DIES["910C"].flops / DIES["H100"].flops)
    expected = recipe.rollout.expected_length
    if args.mean is None and expected is None:
        raise LabError("how long answers are is not known: give --mean N")
    mean = (expected or 0) - plan.prompt_tokens if args.mean is None else args.mean
    if args.cost:
        device, cost = None, fitted(_steps(args.cost))
        clock = f"fitted to {args.cost}"
    else:
        device, cost, clock = _clock(recipe, plan, shape)
    progress = Progress()
    answers, ks = read_answers(args.acceptance or RECORDING), sorted({1, 2, 3, 4, 6, 8, 15, plan.k})
    sources = ["request", "group"] if "group" in sam.sources else ["request"]
    options = {"rule": sam.rule, "min_prob": sam.min_prob, "sources": sources}
    acceptance = recorded(answers, sources[-1], options, ks, progress=progress.show)
    inputs = Inputs(plan, Lengths(mean, args.spread, plan.limit), cost, acceptance)
    likely = (0.7, 1.3) if args.acceptance else (0.7, 1.8)
    result = study(inputs, args.draws, device, likely, progress.show)
    progress.clear()
    advice = words.recommend(plan, result, sam.memory_bytes, mean)
    _print(plan, clock, result, mean, advice)
    if args.json:
        kept = {name: value for name, value in result.items() if name != "traces"}
        write_json(args.json, kept | {"recommendation": advice})
    if args.picture:
        figure.draw(args.picture, result, plan.name)
    return 0


def _steps(path: Path) -> list[dict[str, Any]]:
    """The steps of an engine replay's steps.json; raises LabError or OSError."""
    try:
        steps = [step for run in json.loads(path.read_text()) for step in run["steps"]]
        steps[0]["s"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LabError(f"{path} is not the steps.json of an engine-replay ({error!r})") from None
    return steps


def _clock(recipe: Recipe, plan: Setup, shape: Shape) -> tuple[Die | None, Cost, str]:
    """The device (None if its steps were measured), the cost of its steps, and where the cost is from.

    Raises LabError if the recipe's device has no cost model.
    """
    kind = recipe.cluster.device
    name = {"npu": "910C", "cuda": "H100"}.get(kind)
    if name is None:
        raise LabError(
            f"cluster.device is {kind}, for which there is no cost model: fit one to a replay with --cost FILE"
        )
    if name == "H100" and shape == SHAPES["Qwen3-8B"] and plan.tensor == 1 and not plan.eager:
        return None, measured("h100"), "H100, measured steps (sam_lab/data/cost-h100.json)"
    device = DIES[name]
    return device, roofline(shape, plan.tensor, plan.expert, device, plan.eager), f"{device.name}, a roofline"


def _print(plan: Setup, clock: str, result: dict[str, Any], mean: float, advice: Sequence[str]) -> None:
    devices = f"{plan.dies} {plan.unit}{'s' * (plan.dies > 1)}"
    states = (
        f", of which a request's states take {plan.states(plan.k):,.0f} (k = {plan.k}), {plan.states(0):,.0f} without"
    )
    print(
        f"{plan.name}: {devices}, {plan.ranks} engines of {plan.tensor}; {plan.gen_prompts} x {plan.n} answers "
        f"per round of {mean:,.0f} tokens, {plan.rounds} round{'s' * (plan.rounds > 1)}; "
        f"{plan.slots} requests at once, memory for {plan.capacity:,.0f} tokens per engine"
        f"{states if plan.shape.nets else ''}\ncost of a step: {clock}\n"
    )
    print("threshold, k       round   rollout      step   speed        10-90 %    tail  its speed")
    labels = {"batch": "batch {} {}".format(*result["own"]), "best": "batch {} {}".format(*result["best"])}
    for name, f in result["figures"].items():
        span = "{:.2f} - {:.2f}".format(*result["ranges"][name]["rollout_gain"]) if name != "off" else ""
        print(
            f"{labels.get(name, name):14}{f['round_s']:>8,.0f} s{f['rollout_s']:>8,.0f} s{f['step_s']:>8,.0f} s"
            f"{f['rollout_gain']:>8.3f}{span:>15}{100 * f['tail_share']:>6.0f} %{f['tail_gain']:>11.3f}"
        )
    off = result["ranges"]["off"]
    rollout, step = ("{:,.0f} - {:,.0f} s".format(*off[name]) for name in ("rollout_s", "step_s"))
    print(f"off, 10-90 %: rollout {rollout}, step {step}")
    print(f"tail: at most {plan.threshold} run")
    print("\nRecommendation\n" + "\n".join(f"  {line}" for line in advice))
