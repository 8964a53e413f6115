# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab`: replay recordings, compare drafting methods, predict a recipe's rollout, run the benchmark."""

from __future__ import annotations

import argparse
import importlib
import sys

from llm_rl.errors import UserError
from sam_core import console

COMMANDS = {
    "replay": ("sam_lab.score.rules", "score sam_core's drafting rules on recorded answers"),
    "resumed": ("sam_lab.resumed", "score groups by name where answers are resumed or have turns"),
    "kept": ("sam_lab.kept", "score which earlier answers to a prompt to keep"),
    "compare": ("sam_lab.score.methods", "compare the papers' methods that need no model on recorded answers"),
    "shift": ("sam_lab.score.shift", "let SuffixDecoding adapt to answers of another kind"),
    "export": ("sam_lab.export", "write a recording from rollout dumps or a run's folder"),
    "retrieval": ("sam_lab.methods.retrieval", "time REST's datastore: building, size, retrieval"),
    "models": ("sam_lab.models", "write a target and a draft model"),
    "tree": ("sam_lab.tree.command", "decode prompts with a model by every method, beside plain decoding"),
    "engine-replay": ("sam_lab.engine_replay.command", "let recorded answers drive the patched engine"),
    "evidence": ("sam_lab.evidence.command", "compare every way to speculate on shipped answers, by several clocks"),
    "rebuild": ("sam_lab.evidence.rebuild", "rebuild the full recordings of the shipped answers from their sources"),
    "plan": ("sam_lab.plan.command", "predict a recipe's rollout without and with SAM"),
    "switch-worlds": ("sam_lab.switch_worlds.command", "run switch auto in random worlds"),
    "routing": ("sam_lab.routing", "roll out on several replicas, by ways of routing prompts to them"),
    "papers": ("sam_lab.papers.command", "measure what the papers and the article claim"),
    "bench": ("sam_lab.bench.command", "measure sam_core beside other drafters, against its targets"),
    "bench-asynchronous": ("sam_lab.bench.asynchronous", "measure drafts made one step late, against their targets"),
    "bench-sampler": ("sam_lab.bench.sampler", "measure verification beside vllm-ascend's, against its targets"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    top = argparse.ArgumentParser(prog="python -m sam_lab", description=__doc__.partition(": ")[2])
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (module, text) in COMMANDS.items():
        parser = commands.add_parser(name, help=text)
        if argv and argv[0] == name:
            try:
                command = importlib.import_module(module)
            except ModuleNotFoundError as error:
                top.error(f"{name} needs the package {error.name}, which is not installed in this environment")
            command.add_arguments(parser)
            if hasattr(command, "EPILOG"):
                parser.epilog, parser.formatter_class = command.EPILOG, argparse.RawDescriptionHelpFormatter
            parser.set_defaults(run=command.run)
    try:
        return console.run(top.parse_args(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
