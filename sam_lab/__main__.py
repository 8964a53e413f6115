# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab`: replay recordings, predict a recipe's rollout, measure engines, run the benchmark."""

from __future__ import annotations

import argparse
import importlib
import sys

from llm_rl.errors import UserError
from sam_core import console

COMMANDS = {
    "plan": ("sam_lab.plan.command", "predict a recipe's rollout without and with SAM"),
    "evidence": ("sam_lab.evidence.command", "compare all ways to speculate on shipped answers, with cost models"),
    "replay": ("sam_lab.replay_command", "score sam_core's drafting rules on recorded answers"),
    "engine-replay": ("sam_lab.engine_replay.command", "let recorded answers drive the real engine"),
    "export": ("sam_lab.export", "write a recording from rollout dumps or a run's folder"),
    "papers": ("sam_lab.papers.command", "measure the claims of SuffixDecoding, REST and GSD on recorded answers"),
    "switch-worlds": ("sam_lab.switch_worlds.command", "run switch auto in random worlds"),
    "bench": ("sam_lab.bench.command", "measure sam_core and other drafters, against its targets"),
    "bench-asynchronous": ("sam_lab.bench.asynchronous", "measure drafts made one step late, against their targets"),
    "bench-sampler": ("sam_lab.bench.sampler", "measure verification and vllm-ascend's, against its targets"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status.

    Its module has `add_arguments(parser)`, `run(args)` and perhaps EPILOG; only that of the command called is imported.
    """
    argv = sys.argv[1:] if argv is None else argv
    top = argparse.ArgumentParser(prog="python -m sam_lab", description=__doc__.partition(": ")[2])
    parsers = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (module, text) in COMMANDS.items():
        parser = parsers.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if argv and argv[0] == name:
            try:
                command = importlib.import_module(module)
            except ModuleNotFoundError as error:
                top.error(f"{name} needs the package {error.name}, which is not installed in this environment")
            parser.description = (command.__doc__ or "").partition(": ")[2]
            parser.epilog = getattr(command, "EPILOG", None)
            command.add_arguments(parser)
            parser.set_defaults(run=command.run)
    try:
        return console.run(top.parse_args(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
