# SPDX-License-Identifier: Apache-2.0
"""Generate answers to the questions of a data set with SAM off or on; an interrupted call can be resumed."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sam_core.files import naming, try_lock

from llm_rl import rewards
from llm_rl.data import files
from llm_rl.errors import UserError
from llm_rl.evaluation import questions
from llm_rl.evaluation.engine import (
    Engine,
    add_engine_arguments,
    at_least,
    device,
    json_object,
    load_tokenizer,
)
from llm_rl.evaluation.engine import settings as engine_settings
from llm_rl.evaluation.questions import Question

BEGINNING = b'{"questions": '
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, batch=64)
    parser.add_argument("--data", type=Path, required=True, help="questions, as `python -m llm_rl.data` writes them")
    parser.add_argument("--limit", type=int, help="use only this many questions, from the first")
    parser.add_argument("--rule", default="oldest", help="drafting rule (default oldest, the article's)")
    parser.add_argument("--max-tokens", type=int, default=34816, help="longest answer (default 34816)")
    parser.add_argument("--template", type=json_object, default={}, help="arguments of the chat template, as JSON")
    parser.add_argument("--sam", choices=("off", "batch"), required=True, help="speculation off, or on")
    parser.add_argument("--k", type=int, default=3, help="drafted tokens per step (default 3)")
    parser.add_argument("--verify", default="rejection", help="rejection (default) or seeded")
    parser.add_argument("--n", type=int, default=1, help="answers to each question (default 1)")
    parser.add_argument("--temperature", type=float, default=0.6, help="default 0.6, the article's")
    parser.add_argument("--top-p", type=float, default=1.0, help="default 1")
    parser.add_argument("--top-k", type=int, default=0, help="default 0: all tokens")
    parser.add_argument("--seed", type=int, default=0, help="seed of the answers (default 0)")
    parser.add_argument("--out", type=Path, required=True, help="file of results, JSON Lines")


def run(args: argparse.Namespace) -> int:
    """Answer the questions that `args.out` lacks; return 1 if speculation was on but no draft was accepted, else 0."""
    at_least(args, n=1, batch=1, tensor_parallel=1, k=1, max_tokens=1, temperature=0, top_k=0)
    if not 0 < args.top_p <= 1:
        raise UserError(f"--top-p must be above 0 and at most 1, got {args.top_p}")
    selected = questions.read(args.data, args.limit)
    header = describe(args, len(selected))
    with _results(args.out, header) as (file, done):
        left = [(number, question) for number, question in enumerate(selected) if question.key not in done]
        if done:
            print(f"{len(done)} of {len(selected)} questions are answered in {args.out}; resuming", flush=True)
        if left:
            for row in _answer(left, args, header):
                with naming(args.out):
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
    header, rows = read(args.out)
    right = sum(map(right_answers, rows.values())) / (len(rows) * args.n)
    drafted, accepted = (sum(row[name] for row in rows.values()) for name in ("drafted", "accepted"))
    print(f"pass@1 {right:.1%}: {len(rows)} questions, {args.n} answers to each; `compare` has an interval and a test")
    print(f"{drafted:,} draft tokens verified, {accepted:,} accepted")
    if args.sam != "off" and not accepted:
        print("error: speculation was requested, but no draft was accepted: this run shows nothing", file=sys.stderr)
        return 1
    return 0


def describe(args: argparse.Namespace, count: int) -> dict[str, Any]:
    """The first line of a file of results: its settings. A call with other settings refuses the file."""
    import vllm

    sam = {"rule": args.rule, "threshold": args.batch, "verify": args.verify}
    if args.rule == "oldest":
        sam |= {"sources": ["request"], "min_prob": 0}
    return {
        "questions": count,
        "data": args.data.name,
        "data_sha256": files.sha256(args.data),
        "model": args.model,
        **{name: getattr(args, name) for name in ("n", *SAMPLING, "seed", "template")},
        "sam": args.sam,
        "k": args.k if args.sam != "off" else 0,
        "sam_options": sam,
        "engine": engine_settings(args),
        "device": device(),
        "vllm": vllm.__version__,
    }


@contextlib.contextmanager
def _results(path: Path, header: dict[str, Any]) -> Iterator[tuple[BinaryIO, dict[str, Any]]]:
    """Open the file of results to append rows; yield it and its complete rows. Raises UserError on other settings."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab+")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    with file:
        try:
            try_lock(file.fileno(), path)
        except ValueError as error:
            raise UserError(f"{error} for --out") from None
        except BlockingIOError:
            raise UserError(f"{path} is being written by another call: wait for it") from None
        file.seek(0)
        content = file.read()
        whole = content.rpartition(b"\n")[0]
        if not whole and not BEGINNING.startswith(content[: len(BEGINNING)]):
            raise UserError(f"{path} is not a file of results: name a new file")
        known, rows = read(path) if whole else ({}, {})
        if not rows:
            file.truncate(0)
            file.write(json.dumps(header, ensure_ascii=False).encode() + b"\n")
            file.flush()
            yield file, {}
            return
        if other := sorted(name for name in {*known, *header} if known.get(name) != header.get(name)):
            changes = "; ".join(f"{name} {known.get(name)!r} there, {header.get(name)!r} now" for name in other)
            raise UserError(f"{path} was begun with other settings ({changes}): name a new file")
        file.truncate(len(whole) + 1)
        yield file, rows


def _answer(left: list[tuple[int, Question]], args: argparse.Namespace, header: dict[str, Any]) -> Iterator[dict]:
    """Yield a row of results for each question, as soon as all its answers have ended."""
    from sam_core.seeds import request_seed

    tokenizer = load_tokenizer(args.model)
    chats = [question.messages for _, question in left]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False, **args.template)
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    sampling = {name: getattr(args, name) for name in SAMPLING}
    # With `rejection` a seed for each request is slow, and on a CPU it crashes vLLM 0.23 in chunked prefill.
    seeded = args.verify == "seeded"
    requests = [
        (prompt, sampling | ({"seed": request_seed(args.seed, 0, number, sibling)} if seeded else {}))
        for prompt, (number, _) in zip(prompts, left, strict=True)
        for sibling in range(args.n)
    ]
    settings = {
        "max_model_len": max(map(len, prompts)) + args.max_tokens,
        "seed": request_seed(args.seed, 0, len(left), 0) % 2**31,  # a resumed run must not repeat random numbers
        **header["engine"],
    }
    collected: list[list] = [[None] * args.n for _ in left]
    before = {"drafted": 0, "accepted": 0}
    ended, reported = 0, time.monotonic()
    with Engine(settings, header["k"], header["sam_options"]) as engine:
        for request, answer in engine.answers(requests):
            place, sibling = divmod(request, args.n)
            collected[place][sibling] = {
                "text": answer.text,
                "tokens": len(answer.tokens),
                "hash": hashlib.blake2b(repr(answer.tokens).encode(), digest_size=8).hexdigest(),
                "finish": answer.finish,
            }
            ended += 1
            if time.monotonic() - reported > 10 or ended == len(requests):
                reported = time.monotonic()
                print(f"{ended} of {len(requests)} answers", flush=True)
            if all(collected[place]):
                now = engine.counted()
                question = left[place][1]
                yield {
                    "key": question.key,
                    "data_source": question.data_source,
                    "truth": question.truth,
                    "answers": collected[place],
                    **{name: now[name] - before[name] for name in now},
                }
                before, collected[place] = now, []


def read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The header of a file of results and its rows by the question's key.

    Ignores an incomplete last line and rows with another number of answers than the header's n. Raises UserError if the
    file cannot be read or is not a file of results.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
        header, *rows = map(json.loads, lines)
        assert header["questions"] and isinstance(header["n"], int)
        return header, {row["key"]: row for row in rows if len(row["answers"]) == header["n"]}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{path} is not a file of results of `python -m llm_rl.evaluation run`") from None


def right_answers(row: dict[str, Any]) -> int:
    """Number of right answers in a row of results."""
    return sum(rewards.is_right(row["data_source"], answer["text"], row["truth"]) for answer in row["answers"])
