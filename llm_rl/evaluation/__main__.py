# SPDX-License-Identifier: Apache-2.0
"""Accuracy checks on any local model folder; the questions come from `python -m llm_rl.data prepare`.

python -m llm_rl.evaluation run --model DIR --data FILE --sam off --out OFF.jsonl
python -m llm_rl.evaluation run --model DIR --data FILE --sam batch --out ON.jsonl
python -m llm_rl.evaluation compare OFF.jsonl ON.jsonl
"""

import argparse
import sys
from pathlib import Path

from sam_core.files import check_output, write_json

from llm_rl.errors import UserError
from llm_rl.evaluation import generate
from llm_rl.evaluation.compare import compare, table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.evaluation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("run", help="answer questions with SAM off or on; resumes after an interruption")
    generate.add_run_arguments(command)
    command.set_defaults(work=generate.run)
    command = commands.add_parser(
        "compare", help="pass@1 of two runs, their difference with an interval, a paired test"
    )
    command.add_argument("off", type=Path, metavar="OFF", help="results of a run with --sam off")
    command.add_argument("on", type=Path, metavar="ON", help="results of a run with --sam batch")
    command.add_argument("--out", type=Path, help="write the figures to this file, JSON")
    command.set_defaults(work=compare_runs)
    args = parser.parse_args(argv)
    try:
        return args.work(args)
    except (UserError, OSError, ValueError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def compare_runs(args: argparse.Namespace) -> int:
    """Print the comparison; return 0 without a significant difference, 1 if pass@1 differs."""
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        check_output(args.out, (args.off, args.on))
    comparison = compare(args.off, args.on)
    print(table(comparison))
    print(comparison["verdict"])
    if args.out:
        write_json(args.out, comparison)
    return int(comparison["differs"])


if __name__ == "__main__":
    sys.exit(main())
