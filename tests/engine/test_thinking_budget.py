# SPDX-License-Identifier: Apache-2.0
"""vLLM's holder of thinking budgets, on requests whose next token is a function of their text."""

import functools
import random

import pytest
import torch
from thinking import START, reasoning
from tiny_qwen3 import VOCAB


class Batch:
    """Requests as rows of a holder. Their greedy tokens are drawn at random, once for each text."""

    def __init__(self, prompts, budgets, end, num_spec_tokens):
        from vllm import SamplingParams
        from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
        from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

        self.update, self.directions = BatchUpdate, MoveDirectionality
        sizes = (len(prompts), num_spec_tokens, torch.device("cpu"), False)
        self.holder = ThinkingBudgetStateHolder(reasoning(end), *sizes)
        self.prompts, self.outputs, self.rows = prompts, [[] for _ in prompts], list(range(len(prompts)))
        params = [SamplingParams(thinking_token_budget=budget) for budget in budgets]
        self.change(added=[*zip(self.rows, params, prompts, self.outputs, strict=True)])

    def change(self, removed=(), added=(), moved=()):
        self.holder.sync_batch(self.update(len(self.rows), list(removed), list(added), list(moved)))

    def leave(self, row):
        """The request of a row ends, and that of the last row moves there."""
        last = self.rows.pop()
        if row == len(self.rows):
            self.change(removed=[row])
        else:
            self.rows[row] = last
            self.change(moved=[(len(self.rows), row, self.directions.UNIDIRECTIONAL)])

    def logits(self, request, drafted=()):
        text = self.prompts[request] + self.outputs[request] + list(drafted)
        return torch.rand(VOCAB, generator=torch.Generator().manual_seed(hash(tuple(text)) % 2**63))

    def step(self, drafts):
        """drafts: of each row. As Sampler and RejectionSampler call the holder."""
        outputs = [self.outputs[request] for request in self.rows]
        last = torch.stack([self.logits(*pair) for pair in zip(self.rows, drafts, strict=True)])
        self.holder.update_state(outputs, drafts)
        last = self.holder.apply_to_logits(last, any(drafts), drafts).argmax(1).tolist()
        sampled = []
        if any(drafts):
            pairs = zip(self.rows, drafts, strict=True)
            rows = [self.logits(request, draft[:i]) for request, draft in pairs for i in range(len(draft))]
            sampled = self.holder.apply_to_logits(torch.stack(rows), False, drafts).argmax(1).tolist()
        for output, draft, bonus in zip(outputs, drafts, last, strict=True):
            own, sampled = [*sampled[: len(draft)], bonus], sampled[len(draft) :]
            accepted = next((i for i, token in enumerate(draft) if token != own[i]), len(draft))
            output += own[: accepted + 1]


@pytest.mark.parametrize("end", [(61,), (61, 62), (61, 61, 62)])
def test_rows_of_drafts_are_those_of_their_texts(monkeypatch, end):
    """Budgets run out and thinking ends anywhere in drafts, some of them right and some wrong, while rows move."""
    from vllm.utils.torch_utils import async_tensor_h2d
    from vllm.v1.sample import thinking_budget_state

    unpinned = functools.partial(async_tensor_h2d, pin_memory=False)
    monkeypatch.setattr(thinking_budget_state, "async_tensor_h2d", unpinned)
    accepted = forced = 0
    for seed in range(40):
        rng = random.Random(seed)
        prompts = [[rng.randrange(59) for _ in range(rng.randrange(6))] for _ in range(8)]
        prompts = [prompt + START + [7] * rng.randrange(3) if rng.random() < 0.7 else prompt for prompt in prompts]
        budgets = [rng.choice([None, *range(9)]) for _ in prompts]
        alone = [Batch([prompt], [budget], end, 0) for prompt, budget in zip(prompts, budgets, strict=True)]
        for one in alone * 50:
            one.step([[]])
        texts = [one.outputs[0] for one in alone]
        batch = Batch(prompts, budgets, end, 4)
        while batch.rows:
            drafts = []
            for request in batch.rows:
                at = len(batch.outputs[request])
                draft = texts[request][at : at + rng.randrange(5)]
                if draft and rng.random() < 0.5:
                    draft[rng.randrange(len(draft))] = rng.choice([*end, *START, 5])
                drafts.append(draft)
            if rng.random() < 0.3:
                drafts = [[] for _ in drafts]
            accepted -= sum(map(len, batch.outputs)) + len(batch.rows)
            batch.step(drafts)
            accepted += sum(map(len, batch.outputs))
            if len(batch.rows) > 1 and rng.random() < 0.4:
                i, j = rng.sample(range(len(batch.rows)), 2)
                batch.rows[i], batch.rows[j] = batch.rows[j], batch.rows[i]
                batch.change(moved=[(i, j, batch.directions.SWAP)])
            for row in reversed(range(len(batch.rows))):
                if len(batch.outputs[batch.rows[row]]) > 40:
                    batch.leave(row)
        for prompt, budget, output, text in zip(prompts, budgets, batch.outputs, texts, strict=True):
            assert output == text[: len(output)]
            if budget is not None and prompt[-1:] == START and set(output[:budget]).isdisjoint(end):
                assert output[budget : budget + len(end)] == list(end)
                forced += 1
    assert accepted > 1000 and forced > 30
