# SPDX-License-Identifier: Apache-2.0
"""Prepare data sets for training and evaluation.

python -m llm_rl.data prepare {dapo-math-17k,gsm8k,aime2024,math500} --source FILE --out FILE.parquet
"""

import argparse
import sys
from pathlib import Path

from llm_rl.data import prepare
from llm_rl.data.schemas import SETS
from llm_rl.errors import UserError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.data", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    what = "write a data set in verl's schema, checked and without duplicates, and FILE.parquet.json, its record"
    command = commands.add_parser("prepare", help=what)
    command.add_argument("name", choices=SETS, metavar="NAME", help=", ".join(SETS))
    command.add_argument("--source", type=Path, required=True, help="the public file, Parquet or JSON Lines")
    command.add_argument("--out", type=Path, required=True, help="file to write, *.parquet")
    command.add_argument("--skip-bad", action="store_true", help="skip bad rows instead of stopping")
    command.add_argument("--keep-duplicates", action="store_true", help="keep all copies of a prompt")
    args = parser.parse_args(argv)
    if args.out.suffix != ".parquet":
        parser.error(f"--out must end in .parquet, got {args.out}")
    try:
        record = prepare.prepare(args.name, args.source, args.out, args.skip_bad, args.keep_duplicates)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or args.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    for name in ("source_sha256", "rows_in", "bad_rows", "duplicates_removed", "max_copies_of_a_prompt", "rows"):
        if name in record:
            print(f"{name:24} {record[name]}")
    print(f"wrote {args.out} and {args.out}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
