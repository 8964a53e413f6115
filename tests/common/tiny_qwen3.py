# SPDX-License-Identifier: Apache-2.0
"""The model of the tests that start engines."""

VOCAB = 64


def save(folder, **shape):
    """Saves a Qwen3 of 0.2 M parameters, untrained but with weights large enough for a peaked distribution.

    `shape`: num_attention_heads, num_key_value_heads and head_dim; num_hidden_layers (2).
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        max_position_embeddings=2048,
        initializer_range=0.08,
        tie_word_embeddings=False,
        eos_token_id=VOCAB - 1,
        bos_token_id=None,
        dtype="float32",
        **{"num_hidden_layers": 2, **shape},
    )
    network = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(network.lm_head.weight, std=0.5)
    network.save_pretrained(folder)
