# SPDX-License-Identifier: Apache-2.0
"""The texts of the timings, from the small recordings."""

import random

import numpy as np

from sam_lab.recordings import DATA, by_group, read_answers

SETS = {path.name.partition(".")[0]: path for path in sorted(DATA.glob("*.jsonl.gz"))}
SIBLINGS = 4
"""Rows per group."""


def ordinary(rows: int, size: int) -> np.ndarray:
    """A table int32 [rows, size] of recorded answers, one after another. SIBLINGS rows answer the same prompts.

    Answers that have been used are repeated with every tenth token replaced at random, by a fixed seed.
    """
    groups = by_group(read_answers(SETS["math-cot-groups8"]))
    whole = [group[:SIBLINGS] for _, group in sorted(groups.items()) if len(group) >= SIBLINGS]
    rng = np.random.default_rng(20)
    table = np.empty((rows, size), np.int32)
    for row in range(rows):
        first, sibling = divmod(row, SIBLINGS)
        answers = [whole[(first + at) % len(whole)][sibling] for at in range(len(whole))]
        text = np.concatenate([np.array(answer.response_ids, np.int32) for answer in answers])
        parts = [text]
        while sum(map(len, parts)) < size:
            changed = rng.random(len(text)) < 0.1
            parts.append(np.where(changed, rng.permutation(text), text))
        table[row] = np.concatenate(parts)[:size]
    return table


def collection(size: int) -> list[list[int]]:
    """Recorded answers with about `size` tokens in total. If there are too few, they repeat, with a tenth of the tokens
    changed."""
    texts = [list(answer.response_ids) for path in SETS.values() for answer in read_answers(path)]
    rng = random.Random(20)
    rng.shuffle(texts)
    chosen: list[list[int]] = []
    total = 0
    while total < size:
        text = texts[len(chosen) % len(texts)]
        if len(chosen) >= len(texts):
            text = [token + rng.randrange(50) * (rng.random() < 0.1) for token in text]
        chosen.append(text)
        total += len(text)
    return chosen
