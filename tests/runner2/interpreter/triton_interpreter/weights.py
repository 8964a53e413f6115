# SPDX-License-Identifier: Apache-2.0
"""Makes weights of vLLM's CPU backend reloadable, as on a GPU, because trainers send new weights."""


def keep_unpacked():
    """Keep vLLM from packing linear weights for the CPU, after which the originals are gone. A plugin of vLLM."""
    import torch
    import vllm.model_executor.layers.utils as utils

    def dispatch_cpu_unquantized_gemm(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
