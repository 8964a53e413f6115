# SPDX-License-Identifier: Apache-2.0
"""Weights of vLLM's CPU backend that can be loaded again, as those on a GPU can: trainers send new ones."""


def keep_unpacked():
    """vLLM packs a linear layer's weight for the CPU's instructions, and then has it no longer; a plugin of vLLM."""
    import torch
    import vllm.model_executor.layers.utils as utils

    def dispatch_cpu_unquantized_gemm(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
