# SPDX-License-Identifier: Apache-2.0
"""`python -m llm_rl.lab`: make models, decode with every drafting method, replay recordings, export recordings."""

from __future__ import annotations

import argparse
import importlib
import sys

from llm_rl.errors import UserError

COMMANDS = {
    "models": ("llm_rl.lab.models", "make a target and a draft model on this machine"),
    "tree": ("llm_rl.lab.tree.command", "decode prompts with a model, by every method, against plain decoding"),
    "replay": ("llm_rl.lab.replay.command", "replay recorded answers by every method that needs no model"),
    "export": ("llm_rl.lab.replay.export", "turn rollout dumps into recordings"),
    "engine-replay": ("llm_rl.lab.engine_replay.command", "let recorded answers drive the real engine"),
    "plan": ("llm_rl.lab.plan.command", "predict a recipe's rollout without and with SAM"),
    "switch-worlds": ("llm_rl.lab.switch_worlds.command", "let switch auto learn in random worlds"),
    "papers": ("llm_rl.lab.papers.command", "measure what the papers and the article claim"),
    "shift": ("llm_rl.lab.replay.shift", "let SuffixDecoding adapt to answers of another kind"),
    "routing": ("llm_rl.lab.routing", "roll out on several replicas, by ways of routing prompts to them"),
    "retrieval": ("llm_rl.lab.methods.retrieval", "time REST's datastore: building, size, retrieval"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    top = argparse.ArgumentParser(prog="python -m llm_rl.lab", description=__doc__.partition(": ")[2])
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (module, text) in COMMANDS.items():
        parser = commands.add_parser(name, help=text)
        if argv and argv[0] == name:
            command = importlib.import_module(module)
            command.add_arguments(parser)
            parser.set_defaults(run=command.run)
    args = top.parse_args(argv)
    try:
        return args.run(args)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
    except (ValueError, UserError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())
