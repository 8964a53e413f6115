# SPDX-License-Identifier: Apache-2.0
"""Models and prompts for tests that start engines."""

import itertools
import random

VOCAB = 64
LETTERS = ["".join(word) for n in (1, 2, 3, 4) for word in itertools.product("abc", repeat=n)][: VOCAB - 1] + ["<end>"]
"""Words of one to four letters: a stop string begins and ends anywhere in a token, and several end in one step."""


def repeated_prompts(num: int) -> list[list[int]]:
    """`num` different prompts of 5 to 40 tokens, then the same ones again."""
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCAB - 1) for _ in range(rng.randrange(5, 41))] for _ in range(num)]
    return prompts + prompts


def save(folder, seed=0, experts=False, **shape):
    """Save an untrained Qwen3 of 0.2 M parameters, with weights large enough for a peaked distribution.

    shape: num_attention_heads, num_key_value_heads, head_dim and num_hidden_layers (2); experts: whether each layer has
    8 experts, of which a token uses 2. The router's weights spread tokens over all experts.
    """
    import torch
    import transformers

    settings = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 2048}
    settings |= {"initializer_range": 0.08, "tie_word_embeddings": False, "eos_token_id": VOCAB - 1}
    settings |= {"bos_token_id": None, "dtype": "float32", "num_hidden_layers": 2, **shape}
    if experts:
        settings |= {"moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
        settings |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    kind = "Qwen3Moe" if experts else "Qwen3"
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**settings)
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    torch.nn.init.normal_(network.lm_head.weight, std=0.5)
    for layer in network.model.layers if experts else ():
        torch.nn.init.normal_(layer.mlp.gate.weight, std=0.3)
    network.save_pretrained(folder)


STATE_LAYERS = {
    "qwen3-next": {
        "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 32,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_num_value_heads": 1,
        "linear_value_head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "granite": {
        "layer_types": ["mamba", "attention"],
        "attention_multiplier": 0.18,
        "mamba_expand": 1,
        "mamba_n_heads": 1,
        "mamba_d_head": 64,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 64,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "num_attention_heads": 1,  # vLLM's CPU code rotates the first head alone
        "initializer_range": 0.3,  # its output is the transposed embedding
        "intermediate_size": 128,
        "block_auto_adjust_ff_dim": False,
        "conv_dim": 64,
        "block_dim": 64,
    },
}
"""Families of models by the layer that keeps a state: a gated delta net, Mamba2, a short convolution."""


def save_stateful(folder, family):
    """Save an untrained model of STATE_LAYERS, whose first layer keeps a state and the second is attention."""
    import torch
    import transformers

    kind = {"qwen3-next": "Qwen3Next", "granite": "GraniteMoeHybrid", "lfm2": "Lfm2"}[family]
    shape = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 2048}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.08, "dtype": "float32"}
    shape |= {"eos_token_id": VOCAB - 1, "bos_token_id": None, "pad_token_id": None} | STATE_LAYERS[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**shape)
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    if family != "lfm2":
        torch.nn.init.normal_(network.lm_head.weight, std=0.5)
    network.save_pretrained(folder)
    if family == "granite":  # as vLLM calls them
        config.layer_types = ["linear_attention", "full_attention"]
        config.save_pretrained(folder)
    if family == "qwen3-next":
        add_mtp_head(folder)


def add_mtp_head(folder):
    """Add an untrained MTP head to a saved Qwen3-Next, with the last layer's weights as its layer."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    last = "model.layers.1."
    head = {
        name.replace(last, "mtp.layers.0."): each.clone() for name, each in weights.items() if name.startswith(last)
    }
    head |= {f"mtp.{name}.weight": torch.zeros(64) for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")}
    head["mtp.fc.weight"] = torch.randn(64, 128) * 0.08
    save_file(weights | head, folder / "model.safetensors", {"format": "pt"})


def save_noisy(folder, model, noise=0.15):
    """Save a model as its own drafter, with noise in all weights, as a share of their standard deviation."""
    import torch
    import transformers

    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(torch.randn_like(weights) * weights.std() * noise)
    network.save_pretrained(folder)


def save_eagle3(folder, model):
    """Save an untrained EAGLE-3 head for a Qwen3 of four layers."""
    import json

    import torch
    import transformers
    from safetensors.torch import save_file

    target = transformers.AutoConfig.from_pretrained(model)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    config = {
        name: getattr(target, name) for name in (*names, "rms_norm_eps", "eos_token_id", "max_position_embeddings")
    }
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    config |= {"dtype": "float32", "tie_word_embeddings": False, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    config |= {"draft_vocab_size": target.vocab_size, "target_hidden_size": target.hidden_size, "hidden_act": "silu"}
    hidden, inner, queries, keys, size, vocab = (config[name] for name in names)
    shapes = {
        "midlayer.self_attn.q_proj": (queries * size, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys * size, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries * size),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "fc": (hidden, 3 * hidden),
        "lm_head": (vocab, hidden),
    }
    torch.manual_seed(0)
    weights = {f"{name}.weight": torch.randn(*shape) * 0.08 for name, shape in shapes.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"midlayer.{name}.weight"] = torch.ones(hidden)
    weights["norm.weight"] = torch.ones(hidden)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def tokenizer(words, **special):
    """A tokenizer whose tokens are these words, the last of which ends texts. special: other special tokens."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="z"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[-1], **special)


def save_tokenizer(folder, words, **special):
    tokenizer(words, **special).save_pretrained(folder)
