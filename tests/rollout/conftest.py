# SPDX-License-Identifier: Apache-2.0
"""The model and the prompts that the rollouts are asked."""

import random

import pytest
import tiny_qwen3
from tiny_qwen3 import VOCAB


def save_tokenizer(folder):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token=f"t{VOCAB - 1}", pad_token="t0")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny Qwen3 with a tokenizer."""
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
    return save_tokenizer(folder)


@pytest.fixture(scope="session")
def mixture(tmp_path_factory):
    """A tiny Qwen3 of 8 experts a layer, with a tokenizer."""
    folder = tmp_path_factory.mktemp("qwen3_moe")
    tiny_qwen3.save(folder, experts=True, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
    return save_tokenizer(folder)


@pytest.fixture(scope="session")
def prompts():
    """Four prompts of 5 to 16 tokens; token 0 is padding."""
    rng = random.Random(0)
    return [[rng.randrange(1, VOCAB - 1) for _ in range(rng.randrange(5, 17))] for _ in range(4)]
