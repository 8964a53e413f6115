# SPDX-License-Identifier: Apache-2.0
"""`python -m llm_rl.lab retrieval`: time and size of REST's datastore."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from llm_rl.lab.methods.rest import N_MAX, SAMPLE, C, M, Rest
from sam_core import corpus, replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Build a datastore from recordings and time retrievals at places of their answers. Where the recordings have "
        "fewer tokens, the rest are their answers again, a tenth of the tokens replaced at random."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings")
    parser.add_argument("--tokens", type=replay._positive, default=1_000_000, metavar="N", help="default 1000000")
    parser.add_argument("--queries", type=replay._positive, default=2000, metavar="N", help="default 2000")
    parser.add_argument("--sample", type=replay._positive, default=SAMPLE, metavar="N", help="continuations looked at")
    parser.add_argument("--seed", type=int, default=replay.SEED, metavar="N")


def run(args: argparse.Namespace) -> int:
    """The command; raises replay.ReplayError or OSError."""
    rng = np.random.default_rng(args.seed)
    answers = [np.array(a.response_ids, np.int32) for path in args.files for a in replay.read_answers(path)]
    held = answers[::10]  # asked, not stored as they are
    texts = [text for number, text in enumerate(answers) if number % 10]
    size, known = sum(map(len, texts)), np.concatenate(texts)
    while size < args.tokens:
        text = texts[rng.integers(len(answers) * 9 // 10)].copy()
        change = rng.random(len(text)) < 0.1
        text[change] = rng.choice(known, change.sum())
        texts.append(text)
        size += len(text)
    with tempfile.TemporaryDirectory(prefix="lab-retrieval-") as folder:
        begin = time.perf_counter()
        path = replay.build_corpus(texts, folder)
        seconds = time.perf_counter() - begin
        facts = corpus.describe(path)
        print(f"{facts['tokens']:,} tokens, {facts['bytes_per_token']:.2f} bytes a token")
        print(f"built at {facts['tokens'] / seconds / 1e6:.2f} million tokens a second")
        store = Rest(path, N_MAX, M, C, args.sample)
        times, lengths = [], []
        for _ in range(args.queries):
            text = held[rng.integers(len(held))]
            context = text[: rng.integers(1, len(text) + 1)]
            begin = time.perf_counter()
            tree = store.retrieve(context, C)
            times.append(1e6 * (time.perf_counter() - begin))
            lengths.append(len(tree[0]))
    median, tail, worst = np.percentile(times, [50, 90, 99])
    print(f"retrieval: median {median:.0f} us, 90 % within {tail:.0f} us, 99 % within {worst:.0f} us")
    print(f"nodes a retrieval: {np.mean(lengths):.1f}")
    return 0
