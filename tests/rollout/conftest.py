# SPDX-License-Identifier: Apache-2.0
"""The model and the prompts that the rollouts are asked."""

import random

import pytest
from ranks import VOCAB


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A Qwen3 of 0.2 M parameters with a tokenizer, untrained but with weights large enough for a peaked distribution."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.08,
        tie_word_embeddings=False,
        eos_token_id=VOCAB - 1,
        bos_token_id=None,
        dtype="float32",
    )
    folder = tmp_path_factory.mktemp("qwen3")
    network = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(network.lm_head.weight, std=0.5)
    network.save_pretrained(folder)
    words = models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token=f"t{VOCAB - 1}", pad_token="t0")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts():
    """Four prompts of 5 to 16 tokens; token 0 is padding."""
    rng = random.Random(0)
    return [[rng.randrange(1, VOCAB - 1) for _ in range(rng.randrange(5, 17))] for _ in range(4)]
