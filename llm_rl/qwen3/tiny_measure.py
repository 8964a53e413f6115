# SPDX-License-Identifier: Apache-2.0
"""Measure sampled answers of the tiny model: length, accuracy, and tokens per pass with drafts from the same answer."""

import numpy as np

from llm_rl.qwen3 import sums
from sam_core import Pool

PROMPTS, SAMPLES = 32, 8
MAX_RESPONSE = 1024  # tokens
DRAFT = 3  # tokens proposed in each pass of the replay


def encode_prompt(tokenizer, terms):
    """Token ids of a problem rendered by the chat template."""
    text = tokenizer.apply_chat_template(sums.messages(terms), add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def sample(model, tokenizer, prompts, limit, seed):
    """Sample one answer to each prompt at temperature 1, in one batch that shrinks as answers end.

    `prompts` and the result are lists of lists of token ids. An answer ends with the end token unless it was truncated
    at `limit` tokens.
    """
    import torch
    from transformers import DynamicCache

    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache, running = DynamicCache(config=model.config), list(range(len(prompts)))
    answers: list[list[int]] = [[] for _ in prompts]
    with torch.inference_mode():
        for _ in range(limit):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            logits = model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
            ).logits[:, -1]
            ids = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            for request, token in zip(running, ids[:, 0].tolist(), strict=True):
                answers[request].append(token)
            going = (ids[:, 0] != tokenizer.eos_token_id).nonzero()[:, 0]
            if not len(going):
                break
            if len(going) < len(running):
                running = [running[i] for i in going.tolist()]
                ids, mask = ids[going], mask[going]
                cache.batch_select_indices(going)
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
    return answers


def replay(prompt, answer, k=DRAFT):
    """Number of verification passes for `answer`, with up to `k` tokens per pass drafted from prompt and answer.

    A pass yields the drafted tokens that equal the answer's, and one more.
    """
    pool = Pool(rule="newest", sources=("request",))
    slots, lengths = np.array([pool.open(prompt)], np.int32), np.zeros(1, np.int32)
    out, at, passes = np.zeros((1, k), np.int32), 0, 0
    new: list[int] = []
    while at < len(answer):
        pool.step(slots, np.array(new, np.int32), np.array([len(new)], np.int32), k, out, lengths)
        draft = out[0, : lengths[0]].tolist()
        accepted = 0
        while accepted < len(draft) and answer[at + accepted : at + accepted + 1] == [draft[accepted]]:
            accepted += 1
        new = answer[at : at + accepted + 1]
        at += accepted + 1
        passes += 1
    return passes


def measure(model, tokenizer, seed):
    """Sample SAMPLES answers to each of PROMPTS new problems and describe them.

    Returns a dict: accuracy; mixed_prompts, the share of prompts with both right and wrong answers; response lengths in
    tokens; cut_off, the share of answers truncated at MAX_RESPONSE; tail_share, the share of answers longer than three
    times the median; and tokens per verification pass in the replay, for all answers and for the tail (None without
    one).
    """
    problems = sums.problems(PROMPTS, sums.rng_for(seed, "measurement"))
    prompts = [ids for terms in problems for ids in [encode_prompt(tokenizer, terms)] * SAMPLES]
    answers = sample(model, tokenizer, prompts, MAX_RESPONSE, seed)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    right = [sums.correct(text, problems[i // SAMPLES]) for i, text in enumerate(texts)]
    right_of_prompt = [sum(right[i : i + SAMPLES]) for i in range(0, len(right), SAMPLES)]
    lengths = sorted(map(len, answers))
    median = lengths[len(lengths) // 2]
    tail = [len(answer) > 3 * median for answer in answers]
    passes = [replay(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    tail_tokens = sum(len(answer) for answer, in_tail in zip(answers, tail, strict=True) if in_tail)
    tail_passes = sum(count for count, in_tail in zip(passes, tail, strict=True) if in_tail)
    return {
        "accuracy": sum(right) / len(right),
        "mixed_prompts": sum(0 < n < SAMPLES for n in right_of_prompt) / PROMPTS,
        "response_length": {
            "p50": median,
            "p90": lengths[len(lengths) * 9 // 10],
            "p99": lengths[len(lengths) * 99 // 100],
            "max": lengths[-1],
        },
        "cut_off": sum(answer[-1] != tokenizer.eos_token_id for answer in answers) / len(answers),
        "tail_share": sum(tail) / len(tail),
        "tokens_per_pass": sum(lengths) / sum(passes),
        "tail_tokens_per_pass": tail_tokens / tail_passes if tail_passes else None,
    }
