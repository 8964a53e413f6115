# SPDX-License-Identifier: Apache-2.0
"""The recordings that the benchmark reads from a folder."""

import random
from pathlib import Path

import numpy as np

from sam_lab.cli import LabError
from sam_lab.recordings import DATA, Answer, read_answers

LONG = ("math-long-groups", "math-cot-groups8")
"""Sets of groups for the text of the timings; the first one in the folder is used."""
SIBLINGS = 4
"""Rows per group in the timings."""


class RecordedTexts:
    """The recordings of a folder, NAME.jsonl.gz or NAME.jsonl.zst; by default the small ones of the repository."""

    def __init__(self, folder: Path = DATA):
        files = [file for suffix in ("gz", "zst") for file in folder.glob(f"*.jsonl.{suffix}")]
        self.files = {file.name.split(".")[0]: file for file in files}
        if not self.files.keys() & {*LONG}:
            raise LabError(
                f"{folder} has no recording {' or '.join(LONG)}, from which the text of the timings is taken"
            )
        self.folder, self.names = folder, sorted(self.files)

    def answers(self, name: str) -> list[Answer]:
        """The answers of a set."""
        return read_answers(self.files[name])

    def ordinary(self, rows: int, size: int) -> tuple[np.ndarray, str]:
        """A table int32 [rows, size] of recorded answers one after another, and a remark. SIBLINGS rows answer the same
        prompts.

        If there are too few answers, they are repeated with every tenth token replaced at random, by a fixed seed.
        """
        name = next(name for name in LONG if name in self.files)
        groups: dict[str, list[np.ndarray]] = {}
        for answer in self.answers(name):
            groups.setdefault(answer.group, []).append(np.array(answer.response_ids, np.int32))
        whole = [groups[group][:SIBLINGS] for group in sorted(groups) if len(groups[group]) >= SIBLINGS]
        rng = np.random.default_rng(20)
        table, again = np.empty((rows, size), np.int32), False
        for row in range(rows):
            first, sibling = divmod(row, SIBLINGS)
            text = np.concatenate([whole[(first + at) % len(whole)][sibling] for at in range(len(whole))])
            parts = [text]
            while sum(map(len, parts)) < size:
                again = True
                changed = rng.random(len(text)) < 0.1
                parts.append(np.where(changed, rng.permutation(text), text))
            table[row] = np.concatenate(parts)[:size]
        return table, f"answers of {name}" + (", repeated with every tenth token drawn at random" if again else "")

    def collection(self, size: int) -> tuple[list[list[int]], str]:
        """Texts with about `size` tokens in total, for a corpus, and a remark; repeated with changes if too few."""
        texts = [list(answer.response_ids) for name in self.names for answer in self.answers(name)]
        rng = random.Random(20)
        rng.shuffle(texts)
        chosen, total = [], 0
        while total < size:
            for text in texts:
                text = [token + rng.randrange(50) * (rng.random() < 0.1) for token in text] if total else text
                chosen.append(text)
                total += len(text)
                if total >= size:
                    break
        return chosen, "recorded answers" + (", repeated with changes" if len(chosen) > len(texts) else "")


def periodic(rows: int, size: int, period: int) -> np.ndarray:
    """A table int32 [rows, size]; each row repeats `period` tokens of its own."""
    tokens = 1000 + np.arange(rows * period, dtype=np.int32).reshape(rows, period)
    return np.tile(tokens, (1, -(-size // period)))[:, :size].copy()
