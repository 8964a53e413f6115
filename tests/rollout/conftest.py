# SPDX-License-Identifier: Apache-2.0
"""Models and prompts of the rollout tests."""

import random

import pytest
import tiny_qwen3
from tiny_qwen3 import VOCAB


def save(folder, **more):
    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=2, head_dim=32, **more)
    tiny_qwen3.save_tokenizer(folder, [f"t{i}" for i in range(VOCAB)], pad_token="t0")
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny Qwen3 with a tokenizer."""
    return save(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def mixture(tmp_path_factory):
    """A tiny Qwen3 of 8 experts a layer, with a tokenizer."""
    return save(tmp_path_factory.mktemp("qwen3_moe"), experts=True)


@pytest.fixture(scope="session")
def prompts():
    """Four prompts of 5 to 16 tokens; token 0 is padding."""
    rng = random.Random(0)
    return [[rng.randrange(1, VOCAB - 1) for _ in range(rng.randrange(5, 17))] for _ in range(4)]
