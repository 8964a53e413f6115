# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter of the tiny model."""

import json

RANK = 8
SETTINGS = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
"""Settings of engines that accept the adapter."""
WIDTHS = {"q_proj": 64, "v_proj": 32}


def save(folder, head=None):
    """Save an adapter for queries, values and, with `head`, the logits of `head` tokens; it changes every answer.

    Returns vLLM's LoRARequest.
    """
    import torch
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    torch.manual_seed(1)
    layers = [f"model.layers.{layer}.self_attn" for layer in (0, 1)]
    modules = {f"{layer}.{name}": width for layer in layers for name, width in WIDTHS.items()}
    modules |= {"lm_head": head} if head else {}
    weights = {}
    for name, width in modules.items():
        weights[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, 64) * 0.2
        weights[f"base_model.model.{name}.lora_B.weight"] = torch.randn(width, RANK) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    targets = [*WIDTHS, *(["lm_head"] if head else [])]
    shape = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none", "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(shape))
    return LoRARequest("adapter", 1, str(folder))
