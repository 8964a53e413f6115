# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab retrieval`: times and size of REST's datastore."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sam_core import corpus
from sam_lab.cli import LabError, non_negative, positive
from sam_lab.methods import Settings
from sam_lab.methods.rest import SAMPLE, Rest
from sam_lab.recordings import SEED, read_answers, temporary_corpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Build a datastore from recordings and time retrievals at places of their answers. Where the recordings have "
        "fewer tokens, the rest are their answers again, a tenth of the tokens replaced at random."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings")
    parser.add_argument("--tokens", type=positive, default=1_000_000, metavar="N", help="default 1000000")
    parser.add_argument("--queries", type=positive, default=2000, metavar="N", help="default 2000")
    parser.add_argument("--sample", type=positive, default=SAMPLE, metavar="N", help="continuations looked at")
    parser.add_argument("--seed", type=non_negative, default=SEED, metavar="N")


def measure(
    answers: Sequence[Sequence[int]], tokens: int, queries: int, sample: int = SAMPLE, seed: int = SEED
) -> dict[str, float]:
    """Build a datastore of `tokens` tokens and ask it `queries` times; raises LabError if there are fewer than two answers.

    Returns tokens, bytes_per_token, tokens_per_s (of building), median_us, p90_us, p99_us (of a retrieval) and nodes (of
    a draft, on average).
    """
    if len(answers) < 2:
        raise LabError(
            "the recordings have one answer or none: give two or more, one in ten is a query, others are stored"
        )
    rng = np.random.default_rng(seed)
    known_answers = [np.array(answer, np.int32) for answer in answers]
    held = known_answers[::10]  # queries
    texts = [text for number, text in enumerate(known_answers) if number % 10]
    size, known = sum(map(len, texts)), np.concatenate(texts)
    while size < tokens:
        text = texts[rng.integers(len(known_answers) * 9 // 10)].copy()
        change = rng.random(len(text)) < 0.1
        text[change] = rng.choice(known, change.sum())
        texts.append(text)
        size += len(text)
    begin = time.perf_counter()
    with temporary_corpus(texts) as path:
        seconds = time.perf_counter() - begin
        facts = corpus.describe(path)
        store = Rest(path, max_looked_at=sample)
        times, lengths = [], []
        for _ in range(queries):
            text = held[rng.integers(len(held))]
            context = text[: rng.integers(1, len(text) + 1)]
            begin = time.perf_counter()
            tree = store.retrieve(context, Settings.c)
            times.append(1e6 * (time.perf_counter() - begin))
            lengths.append(len(tree[0]))
    figures = {"tokens": facts["tokens"], "bytes_per_token": facts["bytes_per_token"]}
    figures |= {"tokens_per_s": facts["tokens"] / seconds, "nodes": float(np.mean(lengths))}
    return figures | dict(zip(("median_us", "p90_us", "p99_us"), np.percentile(times, [50, 90, 99]).tolist()))


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    answers = [answer.response_ids for path in args.files for answer in read_answers(path)]
    figures = measure(answers, args.tokens, args.queries, args.sample, args.seed)
    print(f"{figures['tokens']:,} tokens, {figures['bytes_per_token']:.2f} bytes a token")
    print(f"built at {figures['tokens_per_s'] / 1e6:.2f} million tokens a second")
    print(
        f"retrieval: median {figures['median_us']:.0f} us, 90 % within {figures['p90_us']:.0f} us, "
        f"99 % within {figures['p99_us']:.0f} us"
    )
    print(f"nodes a retrieval: {figures['nodes']:.1f}")
    return 0
