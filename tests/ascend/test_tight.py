# SPDX-License-Identifier: Apache-2.0
"""Greedy answers where memory and context are short: preemption, prompts in chunks, the end of the context; a
corpus."""

import random

import pytest
from ascend_engine import Engine
from engine_checks import settled, speculated
from one_text import write_corpus
from tiny_qwen3 import VOCAB

K = 4


KNOWN_PROMPT = [5, 44, 17, 60, 2, 31, 9, 52, 23, 38, 11, 47]


@pytest.fixture(scope="module")
def tight(model, cpu, tmp_path_factory):
    """8 KV blocks of 128 tokens, chunks of 48 tokens, a context of 256; the article's rule; a corpus of one answer."""
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    write_corpus(path, KNOWN_PROMPT + cpu.run([KNOWN_PROMPT])[0])
    engine = Engine(
        model,
        sam={"threshold": 64, "rule": "oldest", "sources": ["request"], "min_prob": 0, "corpus": str(path)},
        k=K,
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=48,
        num_gpu_blocks_override=8,
        enable_prefix_caching=False,
    )
    yield engine
    engine.stop()


def random_prompts(seed, lengths):
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB - 1) for _ in range(length)] for length in lengths]


def test_memory_of_the_pool_returns_to_its_base(cpu, tight):
    prompts = random_prompts(0, [30] * 6)
    base = tight.pool()["bytes_used"]
    assert tight.run(prompts, 60) == cpu.run(prompts, 60)
    speculated(tight)
    assert settled(tight)["bytes_used"] == base


def test_corpus_drafts_for_a_prompt_that_was_never_asked(cpu, tight):
    before = tight.drafter()
    assert tight.run([KNOWN_PROMPT]) == cpu.run([KNOWN_PROMPT])
    after = tight.drafter()
    assert after["accepted_corpus"] - before["accepted_corpus"] > 10
    assert tight.count("tokens") / tight.count("running") > 2


def test_preemption_and_prompts_longer_than_a_chunk(cpu, tight):
    prompts = random_prompts(1, [70] * 10)
    before = tight.pool()["appended"]
    assert tight.run(prompts, 80) == cpu.run(prompts, 80)
    speculated(tight)
    assert tight.preemptions > 0, "nothing was preempted: the test shows nothing"
    assert 800 <= tight.pool()["appended"] - before <= 800 + K * 10


def test_neighbour_of_a_request_at_max_model_len_still_drafts(cpu, tight):
    """A prompt of 254 tokens leaves no room for a draft; its neighbour drafts on."""
    prompts = [list(range(8)) * 4, [7] * 254]
    assert tight.run(prompts, [60, 2]) == cpu.run(prompts, [60, 2])
    speculated(tight)
