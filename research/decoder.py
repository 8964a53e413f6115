# SPDX-License-Identifier: Apache-2.0
"""Decode a batch with a drafter, verified by the target model, and count what it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from research.tree_model import TreeModel
from research.verify import walk
from sam_lab.replay import Drafter, Tree


@dataclass
class Figures:
    """Sums over a run. A step is one request's part in one pass of the target; times are in seconds.

    tokens: emitted; drafted: nodes verified; accepted: those of them that became text; passes: of the target, prompts
    included; prefill_s: prompts; draft_s: the drafter, learning from what came included; verify_s: passes of the target
    and drawing its tokens; other_s: the rest, which is the walk and moving keys and values.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    passes: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0

    @property
    def decode_s(self) -> float:
        """Seconds of decoding, prompts left out: they cost the same with and without drafts."""
        return self.draft_s + self.verify_s + self.other_s

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def summary(self) -> dict[str, Any]:
        steps = max(self.steps, 1)
        return asdict(self) | {
            "decode_s": self.decode_s,
            "tokens_per_step": self.tokens / steps,
            "drafted_per_step": self.drafted / steps,
            "precision": self.accepted / max(self.drafted, 1),
        }


class Decoder:
    """Decodes with one target model.

    Args:
        model: a transformers causal LM.
        sampler: Greedy() or Sampled(...).
        ends: token ids that end an answer.
        limit: most tokens of an answer.
        nodes: most nodes of a request's tree.
    """

    def __init__(self, model: torch.nn.Module, sampler: Any, ends: Sequence[int], limit: int, nodes: int = 64) -> None:
        self.model, self.sampler, self.ends, self.limit, self.nodes = model, sampler, set(ends), limit, nodes

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        drafter: Drafter | None = None,
        first: int = 0,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> tuple[list[list[int]], Figures]:
        """Decode all prompts in one batch, which shrinks as answers end; None drafts nothing.

        first: number of the first prompt's request, for the drafter and for the noise of sampling; progress: called
        after each pass with the tokens emitted so far. Returns the answers, the end token included, and the figures.
        Raises ValueError for an empty prompt.
        """
        if not all(map(len, prompts)):
            raise ValueError("a prompt is empty: decoding needs at least one token to start from")
        clock, figures, target = time.perf_counter, Figures(), TreeModel(self.model)
        start = clock()
        # The last token of each text is not in the cache: it is the root of the next pass.
        target.add([prompt[:-1] for prompt in prompts])
        figures.prefill_s = clock() - start
        answers: list[list[int]] = [[] for _ in prompts]
        roots = [prompt[-1] for prompt in prompts]
        running = list(range(len(prompts)))
        start = clock()
        if drafter:
            for row, prompt in enumerate(prompts):
                drafter.start(first + row, prompt, None)
        figures.draft_s += clock() - start
        while running:
            requests = [first + row for row in running]
            begin = clock()
            trees: list[Tree] = [([], [])] * len(running)
            if drafter:
                trees = drafter.propose_tree_many(requests, self.nodes)
            drafted = clock()
            drawn = self._pass(target, requests, [roots[row] for row in running], trees)
            verified = clock()
            kept, emitted, going = [], [], []
            for place, row in enumerate(running):
                nodes, tokens = walk(trees[place], drawn[place])
                kept.append([0, *(node + 1 for node in nodes)])
                tokens = self._shortened(tokens, len(answers[row]))
                answers[row] += tokens
                emitted.append(tokens)
                figures.tokens += len(tokens)
                figures.drafted += len(trees[place][0])
                figures.accepted += min(len(nodes), len(tokens))
                roots[row] = tokens[-1]
                if tokens[-1] not in self.ends and len(answers[row]) < self.limit:
                    going.append(place)
            figures.steps += len(running)
            target.commit(kept)
            if len(going) < len(running):
                target.select(going)
            moved = clock()
            if drafter:
                drafter.append_many(requests, emitted)
                for place in sorted(set(range(len(running))) - set(going)):
                    drafter.finish(requests[place])
            running = [running[place] for place in going]
            figures.verify_s += verified - drafted
            figures.other_s += moved - verified
            figures.draft_s += drafted - begin + clock() - moved
            progress(figures.tokens)
        figures.passes = target.passes
        return answers, figures

    def _pass(
        self, target: TreeModel, requests: Sequence[int], roots: Sequence[int], trees: Sequence[Tree]
    ) -> list[list[int]]:
        """The target's token behind each text and each node of its tree, [B][T]."""
        flat, depths = [], []
        for root, (tokens, parents) in zip(roots, trees, strict=True):
            flat.append(([root, *tokens], [-1, *(parent + 1 for parent in parents)]))
            depth = [0]
            for parent in parents:
                depth.append(depth[parent + 1] + 1)
            depths.append(torch.tensor(depth))
        ends = zip(depths, target.lengths, strict=True)
        positions = pad_sequence([depth + length + 1 for depth, length in ends], batch_first=True)
        logits = target.forward(flat)
        with torch.inference_mode():
            return self.sampler(logits, requests, positions).tolist()

    def _shortened(self, tokens: list[int], before: int) -> list[int]:
        """The tokens up to an end token and to the limit."""
        tokens = tokens[: self.limit - before]
        for at, token in enumerate(tokens):
            if token in self.ends:
                return tokens[: at + 1]
        return tokens
