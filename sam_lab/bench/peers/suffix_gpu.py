# SPDX-License-Identifier: Apache-2.0
"""SuffixGPU, which drafts on the device without waiting for the host, by its operators for a CPU."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sam_lab.bench.peers.source import build, imported

VERSION = "0.1.3"
SHA256 = "9bb84a0181b199ba7167275dfb301b5a628a3d878bc9b859b4ab7f740c1baa8a"
CHUNK = 16
"""New tokens of an answer after which the others draft from them; its default of 64 shares less."""
DELTA = 1 << 13
"""Tokens that are searched one by one until they are sorted in: fewer than its default, for a CPU's sake."""


@functools.cache
def drafter_class() -> Any:
    """suffix_gpu.SuffixGPUDrafter; raises LabError."""
    return imported(build("suffix-gpu", VERSION, SHA256, _make), "suffix_gpu").SuffixGPUDrafter


def _make(source: Path, target: Path) -> None:
    (package,) = source.rglob("suffix_gpu/__init__.py")
    shutil.copytree(package.parent, target / "suffix_gpu")


class SuffixGpuDrafter:
    """For the replay: drafts from the request's own text and, by its index of all texts, from answers of others.

    Args:
        k: tokens of a draft. It has no limit on the length and the probability of one, as by default.
        num_texts, max_length: requests that are open at most, and tokens of each.
    """

    def __init__(self, k: int, num_texts: int, max_length: int) -> None:
        self.drafter = drafter_class()(
            k, enable_global=True, global_capacity=1 << 21, delta_capacity=DELTA, rebuild_threshold=DELTA // 2
        )
        self.rows = torch.zeros(num_texts, max_length + k + 1, dtype=torch.int32)
        self.free = list(range(num_texts))
        self.open: dict[int, tuple[int, int, int]] = {}  # row, tokens of the prompt, tokens

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        row, length = self.free.pop(), len(prompt_ids)
        self.rows[row, :length] = torch.tensor(list(prompt_ids), dtype=torch.int32)
        self.open[request] = row, length, length

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, tokens in zip(requests, rows, strict=True):
            row, prompt, length = self.open[request]
            self.rows[row, length : length + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            self.open[request] = row, prompt, length + len(tokens)

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        self._share(requests)
        places = [self.open[request] for request in requests]
        lengths = torch.tensor([length for *_, length in places], dtype=torch.int32)
        texts = self.rows[[row for row, *_ in places], : int(lengths.max()) + k + 1]
        drafts, counts = self.drafter.propose(lengths, texts)
        return [draft[:count] for draft, count in zip(drafts.tolist(), counts.tolist(), strict=True)]

    def _share(self, requests: Sequence[int], final: bool = False) -> None:
        """Let others draft from what is new in these answers."""
        places = [self.open[request] for request in requests]
        answers = [self.rows[row, prompt:] for row, prompt, _ in places]
        lengths = [length - prompt for _, prompt, length in places]
        self.drafter.ingest_active(list(requests), answers, lengths, final=final, chunk=CHUNK)
        self.drafter.poll()

    def finish(self, request: int) -> None:
        self._share([request], final=True)
        self.free.append(self.open.pop(request)[0])

    def drop(self, group: str) -> None:
        """Its texts stay in the index of all."""
