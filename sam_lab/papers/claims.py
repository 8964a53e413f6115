# SPDX-License-Identifier: Apache-2.0
"""Claims of papers, and the answers on which they are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sam_lab.cli import LabError
from sam_lab.recordings import SEED, Scope, make_scopes, read_answers, split_fold
from sam_lab.replay import Counts, Drafter, replay

NODES = 64
"""Maximum draft tokens per step."""
EARLIER = 1000
"""Maximum outputs that a method knows."""
LONGEST = 1000
"""Maximum scored tokens of an answer, so that long answers leave room for other prompts."""


class Claim(NamedTuple):
    """A paper's claim that `better` has more tokens per step than `worse`."""

    text: str
    better: Counts
    worse: Counts


@dataclass(frozen=True)
class Recording:
    """One answer to each prompt of one half is scored. Methods may know outputs for the other half, in random order."""

    name: str
    scopes: list[Scope]
    outputs: list[list[int]]

    @staticmethod
    def read(path: Path, max_tokens: int) -> Recording:
        """Read a recording. Raises LabError if it has too few prompts, ValueError or OSError."""
        scored, others = split_fold(read_answers(path), (0, 2))
        if not scored or not others:
            raise LabError(f"{path} has too few prompts: some are scored, others give the known outputs")
        order = np.random.default_rng(SEED).permutation(len(others))[:EARLIER]
        outputs = [others[place].response_ids.tolist() for place in order]
        firsts = {answer.prompt_id: answer for answer in reversed(scored)}.values()
        short = [replace(answer, response_ids=answer.response_ids[:LONGEST]) for answer in firsts]
        return Recording(path.name.partition(".")[0], make_scopes(short, "request", max_tokens=max_tokens), outputs)

    def counts(self, drafter: Drafter) -> Counts:
        """Tokens and steps by prompt."""
        by_prompt: Counts = {}
        replay(drafter, self.scopes, "request", NODES, by_prompt=by_prompt)
        return by_prompt
