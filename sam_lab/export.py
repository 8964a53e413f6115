# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab export`: convert files that runs leave into recordings.

There are two sources. verl's rollout dumps (trainer.rollout_data_dir, one <step>.jsonl per training step, with `input`
and `output`) are texts without special tokens. They are tokenized again, so some token ids may differ from the sampled
ones. answers-*.jsonl in a run's folder (SAM_ANSWER_LOG) have the sampled ids, but only a hash of the prompt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sam_core.files import replacing

from llm_rl.evaluation.engine import load_tokenizer
from llm_rl.reports.answers import read_answers
from sam_lab.cli import LabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="DIR", help="a rollout_data_dir of verl, or a run's folder")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the .jsonl file to write")
    parser.add_argument("--tokenizer", metavar="DIR", help="for rollout dumps: the model's folder")


def from_answers(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of the answers that a run has logged, without the prompts' tokens; raises UserError."""
    for (step, prompt, _), answer in sorted(read_answers(folder).items()):
        yield {
            "prompt_ids": [],
            "response_ids": answer.tokens,
            "prompt_id": answer.prompt_hash,
            "group": f"{step}/{prompt}",
            "epoch": step,
        }


def from_dumps(files: list[Path], tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Rows of verl's rollout dumps; a step's answers to a prompt are a group. Raises LabError for an invalid line."""

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    for path in files:
        with open(path) as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                    prompt, answer, step = row["input"], row["output"], row["step"]
                    if not (isinstance(prompt, str) and isinstance(answer, str)):
                        raise TypeError
                except (ValueError, KeyError, TypeError):
                    where = f"{path}, line {number}"
                    raise LabError(
                        f"{where}, is no row of a rollout dump: it needs the texts input and output, and step"
                    ) from None
                yield {"prompt_ids": ids(prompt), "response_ids": ids(answer), "prompt_id": prompt, "epoch": step}


def run(args: argparse.Namespace) -> int:
    """The command; raises LabError or OSError, and then writes nothing."""
    if not args.source.is_dir():
        raise LabError(f"{args.source} is not a folder: name a rollout_data_dir of verl or the folder of a run")
    dumps = sorted((p for p in args.source.glob("*.jsonl") if p.stem.isdigit()), key=lambda p: int(p.stem))
    if any(args.source.glob("answers-*.jsonl")):
        if args.tokenizer:
            raise LabError(f"{args.source} holds token ids: leave --tokenizer out")
        rows = from_answers(args.source)
    elif dumps and args.tokenizer:
        rows = from_dumps(dumps, load_tokenizer(args.tokenizer))
    elif dumps:
        raise LabError(f"{args.source} holds texts: name the folder of the model that wrote them with --tokenizer")
    else:
        raise LabError(f"{args.source} has neither answers-*.jsonl nor <step>.jsonl: nothing to export")
    count = tokens = 0
    with replacing(args.output, args.source.glob("*.jsonl")) as temporary:
        with open(temporary, "w") as file:
            for row in rows:
                count += 1
                tokens += len(row["response_ids"])
                file.write(json.dumps(row) + "\n")
        if not tokens:
            raise LabError(f"{args.source} has no answer with a token: nothing to export")
    print(f"wrote {args.output}: {count:,} answers, {tokens:,} tokens")
    return 0
