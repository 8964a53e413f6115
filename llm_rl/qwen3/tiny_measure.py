# SPDX-License-Identifier: Apache-2.0
"""Measure sampled answers of the tiny model: length and accuracy."""

from llm_rl.qwen3 import sums

PROMPTS, SAMPLES = 32, 8
MAX_RESPONSE = 1024  # tokens


def encode_prompt(tokenizer, terms):
    """Token ids of a problem rendered by the chat template."""
    text = tokenizer.apply_chat_template(sums.messages(terms), add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def sample(model, tokenizer, prompts, limit, seed):
    """Sample one answer to each prompt at temperature 1.

    `prompts` and the result are lists of lists of token ids. An answer ends with the end token unless it was truncated
    at `limit` tokens.
    """
    import torch

    torch.manual_seed(seed)
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    sampled = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=limit)
    answers = sampled[:, batch["input_ids"].shape[1] :].tolist()
    return [answer[: [*answer, tokenizer.eos_token_id].index(tokenizer.eos_token_id) + 1] for answer in answers]


def measure(model, tokenizer, seed):
    """Sample SAMPLES answers to each of PROMPTS new problems and describe them.

    Returns a dict: accuracy; mixed_prompts, the share of prompts with both right and wrong answers; response lengths in
    tokens; cut_off, the share of answers truncated at MAX_RESPONSE; tail_share, the share of answers longer than three
    times the median.
    """
    problems = sums.problems(PROMPTS, sums.rng_for(seed, "measurement"))
    prompts = [ids for terms in problems for ids in [encode_prompt(tokenizer, terms)] * SAMPLES]
    answers = sample(model, tokenizer, prompts, MAX_RESPONSE, seed)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    right = [sums.correct(text, problems[i // SAMPLES]) for i, text in enumerate(texts)]
    right_of_prompt = [sum(right[i : i + SAMPLES]) for i in range(0, len(right), SAMPLES)]
    lengths = sorted(map(len, answers))
    median = lengths[len(lengths) // 2]
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
        "tail_share": sum(length > 3 * median for length in lengths) / len(lengths),
    }
