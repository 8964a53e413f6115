# SPDX-License-Identifier: Apache-2.0
"""A small target and a draft model that often agrees with it: the target with noise on its weights. Nothing is
trained."""

import os

os.environ["VLLM_PLUGINS"] = ""

import random
import sys
from pathlib import Path

import pytest
import tiny_qwen3

sys.path.append(str(Path(__file__).parents[1] / "sam_core"))  # suffix_paper


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_qwen3.save(folder, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    return folder


@pytest.fixture(scope="session")
def target(target_folder):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(target_folder).eval()


@pytest.fixture(scope="session")
def draft_model(target):
    import copy

    import torch

    noise = torch.Generator().manual_seed(1)
    model = copy.deepcopy(target)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.1 * weights.std() * torch.randn(weights.shape, generator=noise) if weights.ndim == 2 else 0
    return model


@pytest.fixture(scope="session")
def prompts():
    """Ten prompts of different lengths; no end token in them."""
    rng, lengths = random.Random(0), (1, 5, 17, 3, 30, 2, 9, 12, 4, 8)
    return [[rng.randrange(tiny_qwen3.VOCAB - 1) for _ in range(length)] for length in lengths]
