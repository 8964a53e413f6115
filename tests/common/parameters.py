# SPDX-License-Identifier: Apache-2.0
"""Requests with sampling parameters of all kinds, for batches in which they run beside others."""

import random

import pytest
from schedule_draws import WORDS
from thinking import START
from tiny_qwen3 import VOCAB

KINDS = {
    "penalties": lambda rng: {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "allowed_token_ids": lambda rng: {"allowed_token_ids": sorted(rng.sample(range(VOCAB - 1), 30))},
    "min_tokens": lambda rng: {"min_tokens": rng.randrange(1, 20), "stop_token_ids": list(range(0, VOCAB, 3))},
    "stop_token_ids": lambda rng: {"stop_token_ids": rng.sample(range(VOCAB), 3)},
    "bad_words": lambda rng: {  # an engine with a tokenizer encodes the words, others take the tokens
        "bad_words": rng.sample(WORDS[:50], 6),
        "_bad_words_token_ids": [[rng.randrange(VOCAB)] for _ in range(4)]
        + [[rng.randrange(VOCAB), rng.randrange(VOCAB)] for _ in range(40)],
    },
    "logprobs": lambda rng: {"logprobs": rng.randrange(4)},
    "prompt_logprobs": lambda rng: {"prompt_logprobs": rng.randrange(3)},
    "logprob_token_ids": lambda rng: (
        {"logprob_token_ids": rng.sample(range(VOCAB), rng.randrange(1, 6)), "logprobs": None}
        if rng.random() < 0.7
        else {"logprobs": rng.randrange(4), "logprob_token_ids": None}
    ),
    "thinking_token_budget": lambda rng: {"thinking_token_budget": rng.randrange(30)},
    "repetition_detection": lambda rng: {"repetition_detection": repetition()},
}
NOT_WITH_DRAFTS = {
    "logit_bias": lambda rng: {"logit_bias": {rng.randrange(VOCAB): rng.choice([-5.0, 3.0]) for _ in range(6)}},
    "min_p": lambda rng: {"min_p": 0.3},
}
"""Kinds that vLLM 0.23 refuses in an engine with drafts."""


def repetition():
    from vllm.sampling_params import RepetitionDetectionParams

    return RepetitionDetectionParams(max_pattern_size=8, min_pattern_size=1, min_count=3)


def requests(kind, seed, kinds=KINDS, flat=True, few=False, **common):
    """14 prompts that begin to think, or 7, the last ones those of the first; lengths; settings of each.

    kind: some have settings of this kind, or with "all" of any of `kinds`; flat: some get FlatLogprobs; common: what
    all have.
    """
    kinds = list(kinds) if kind == "all" else [kind]
    rng = random.Random(seed)
    num, num_prompts, shortest, longest = (7, 4, 20, 40) if few else (14, 8, 20, 70)
    prompts = [[rng.randrange(59) for _ in range(rng.randrange(4, 30))] + START for _ in range(num_prompts)]
    each = [common | ({"seed": i} if common else {}) for i in range(num)]
    for settings in each:
        for kind in kinds:
            if rng.random() < (0.6 if len(kinds) == 1 else 0.3):
                settings |= (KINDS | NOT_WITH_DRAFTS)[kind](rng)
        if flat and rng.random() < 0.3:
            settings["flat_logprobs"] = True
    lengths = [rng.randrange(shortest, longest) for _ in each]
    return prompts + prompts[: num - num_prompts], lengths, each


def budgets_held(answers, each, end):
    """The number of answers that think as long as their budgets allow; `end` must follow at once. The prompts are those
    of `requests`."""
    held = 0
    for answer, settings in zip(answers, each, strict=True):
        budget = settings.get("thinking_token_budget")
        if budget is not None and not set(answer[:budget]) & set(end) and len(answer) >= budget + len(end):
            assert answer[budget : budget + len(end)] == list(end)
            held += 1
    return held


class Alone:
    """What engines of llm_engine give requests alone, kept for further engines."""

    def __init__(self):
        self.known = {}

    def check(self, engines, reference, kind, seed, stagger, end=(61,), few=False, kinds=KINDS, **common):
        """Each of `engines` gives the requests together what `reference` gives each alone; for the others see
        `requests`."""
        prompts, lengths, each = requests(kind, seed, kinds, few=few, **common)
        key = id(reference), kind, seed
        if key not in self.known:
            self.known[key] = []
            for prompt, length, settings in zip(prompts, lengths, each, strict=True):
                answer, *_ = reference.run([prompt], length, each=[settings])
                self.known[key].append((answer, log_probabilities(reference.outputs[0])))
        answers, parts = zip(*self.known[key], strict=True)
        assert budgets_held(answers, each, end) > 1 or kind != "thinking_token_budget"
        for engine in engines:
            assert engine.run(prompts, lengths, each=each, stagger=stagger) == list(answers)
            for output, expected, settings in zip(engine.outputs, parts, each, strict=True):
                same_log_probabilities(log_probabilities(output), expected)
                if asked := settings.get("logprob_token_ids"):
                    completion = output.outputs[0]
                    wanted = [{*asked, token} for token in completion.token_ids]
                    assert list(map(set, completion.logprobs)) == wanted


def log_probabilities(output):
    """{token: log-probability} of each token of answer and prompt, of a RequestOutput."""
    return [
        part and [position and {token: own.logprob for token, own in position.items()} for position in part]
        for part in (output.outputs[0].logprobs, output.prompt_logprobs)
    ]


def same_log_probabilities(ours, theirs):
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine is None) == (expected is None)
        for at, values in zip(mine or (), expected or (), strict=True):
            assert at == (values and pytest.approx(values, abs=1e-4))
