# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab`: replay recordings, predict a recipe's rollout, measure engines, run the benchmark."""

from __future__ import annotations

import sys

from sam_lab import cli

COMMANDS = {
    "plan": ("sam_lab.plan.command", "predict a recipe's rollout without and with SAM"),
    "plan-article": ("sam_lab.plan.article", "fit the planner to the article's figures, predict other published runs"),
    "evidence": ("sam_lab.evidence.command", "compare every way to speculate on shipped answers, by several clocks"),
    "replay": ("sam_lab.replay_command", "score sam_core's drafting rules on recorded answers"),
    "engine-replay": ("sam_lab.engine_replay.command", "let recorded answers drive the real engine"),
    "export": ("sam_lab.export", "write a recording from rollout dumps or a run's folder"),
    "rebuild": ("sam_lab.evidence.rebuild", "rebuild the full recordings of the shipped answers from their sources"),
    "papers": ("sam_lab.papers.command", "measure the claims of SuffixDecoding, REST and GSD on recorded answers"),
    "switch-worlds": ("sam_lab.switch_worlds.command", "run switch auto in random worlds"),
    "bench": ("sam_lab.bench.command", "measure sam_core and other drafters, against its targets"),
    "bench-asynchronous": ("sam_lab.bench.asynchronous", "measure drafts made one step late, against their targets"),
    "bench-sampler": ("sam_lab.bench.sampler", "measure verification and vllm-ascend's, against its targets"),
    "bench-host": ("sam_lab.standin.host", "measure the host time of steps with and without speculation"),
    "device-costs": ("sam_lab.standin.costs", "count what a device would wait for and run in a step"),
}


def main(argv: list[str] | None = None) -> int:
    return cli.main("sam_lab", __doc__.partition(": ")[2], COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
