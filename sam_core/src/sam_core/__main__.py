# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_core`: build a corpus, describe a saved file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sam_core
from sam_core import console


def build_corpus(args: argparse.Namespace) -> int:
    from sam_core import corpus

    progress = console.Progress()
    description = corpus.build_corpus(
        args.files, args.output, key=args.key, tokenizer=args.tokenizer, progress=progress.show
    )
    progress.clear()
    _print(description)
    return 0


def inspect(args: argparse.Namespace) -> int:
    from sam_core import corpus

    with open(args.path, "rb") as file:
        start = file.read(8)
    kinds = {b"samcorp\0": corpus.describe, b"sampool\0": sam_core.Pool.describe}
    if start not in kinds:
        raise ValueError(f"{args.path} is neither a corpus nor a saved pool: name a file that this package wrote")
    description = kinds[start](args.path)
    if args.json:
        print(json.dumps(description, indent=1))
    else:
        _print(description)
    return 0


def _print(description: Mapping[str, Any]) -> None:
    lines = [*_flat(description)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:{width}}  {value:,}" if isinstance(value, int) else f"{name:{width}}  {value}")


def _flat(description: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in description.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m sam_core", description=__doc__.partition(": ")[2])
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    text = "build a corpus of texts, a source of drafts that is the same for all requests"
    command = commands.add_parser("build-corpus", help=text, description=text[0].upper() + text[1:] + ".")
    command.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="JSON Lines (.jsonl, .gz, .zst) with token ids under token_ids or response_ids, or a text as int32 .npy",
    )
    command.add_argument("-o", "--output", required=True, type=Path, metavar="PATH", help="the corpus file to write")
    command.add_argument(
        "--key", metavar="KEY", help="key of the token ids in a JSON line, if neither token_ids nor response_ids"
    )
    command.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="the model's folder or its tokenizer.json; models with another tokenizer then refuse the corpus",
    )
    command.set_defaults(run=build_corpus)

    text = "describe a corpus or a saved pool"
    command = commands.add_parser("inspect", help=text, description=text[0].upper() + text[1:] + ".")
    command.add_argument("path", type=Path, metavar="PATH", help="a corpus or a saved pool")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=inspect)

    return top


def main(argv: list[str] | None = None) -> int:
    return console.run(parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
