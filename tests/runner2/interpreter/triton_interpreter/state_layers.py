# SPDX-License-Identifier: Apache-2.0
"""State layers on the CPU with vLLM's Triton kernels for a GPU. vLLM's code for a CPU ignores how many drafts were
accepted (short convolutions, Mamba2), or rounds verified tokens differently (gated delta nets)."""

import functools
import importlib
import sys
from unittest import mock

KERNELS = "vllm.model_executor.layers.mamba.ops"


@functools.cache
def use_kernels():
    """Make vLLM's layers use these kernels, also in processes that are forked afterwards."""
    from triton import language
    from triton.runtime import interpreter
    from triton.runtime.autotuner import Autotuner
    from vllm import _custom_ops
    from vllm.config.mamba import MambaBackendEnum
    from vllm.model_executor.layers.mamba import mamba_mixer2, short_conv
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as delta_nets
    from vllm.model_executor.layers.mamba.ops import ssu_dispatch
    from vllm.platforms import current_platform

    with mock.patch.object(type(current_platform), "is_cpu", lambda self: False):  # else modules use their CPU code
        conv, *_ = [
            importlib.reload(importlib.import_module(f"{KERNELS}.{name}"))
            for name in ("causal_conv1d", "mamba_ssm", "ssd_combined")
        ]
    for layers in (mamba_mixer2, short_conv, delta_nets):
        layers.causal_conv1d_fn, layers.causal_conv1d_update = conv.causal_conv1d_fn, conv.causal_conv1d_update
    ssu_dispatch._BACKEND_REGISTRY[MambaBackendEnum.CPU] = ssu_dispatch.TritonSSUBackend
    short_conv.ShortConv.forward_native = short_conv.ShortConv.forward_cuda
    mamba_mixer2.MambaMixer2._warmup_ssd_kernels = lambda *args: None

    net = delta_nets.QwenGatedDeltaNetAttention
    init = net.__init__

    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self._forward_method = self.forward_cuda

    net.__init__ = __init__
    net._warmup_prefill_kernels = lambda *args: None
    delta_nets.fla_chunk_gated_delta_rule = token_by_token
    vars(_custom_ops).pop("causal_conv1d_weight_pack", None)  # reorders weights for kernels in bfloat16

    # workarounds for what the interpreter lacks
    interpreter._patch_lang(conv.causal_conv1d_fn)
    for name, module in sys.modules.items():  # they hold functions from before the patch
        if name.startswith("vllm.third_party.flash_linear_attention.ops."):
            vars(module).update({name: getattr(language, name) for name in ("exp", "log") if name in vars(module)})
    start, run = interpreter.GridExecutor.__init__, Autotuner.run

    def start_without_changes(executor, function, names, grid, *args):
        """Give the grid function a copy of the arguments, which it may change and which are pointers at that point."""
        start(executor, function, names, (lambda meta: grid({**meta})) if callable(grid) else grid, *args)

    def run_first(tuner, *args, **kwargs):
        tuner.configs = tuner.configs[:1]
        return run(tuner, *args, **kwargs)

    interpreter.GridExecutor.__init__, Autotuner.run = start_without_changes, run_first


def token_by_token(q, k, v, g, beta, initial_state, cu_seqlens, **settings):
    """Compute a part of a prompt with the kernel that handles one token at a time: the interpreter cannot run the chunk
    kernels, and these do not accept float32."""
    import torch
    from vllm.third_party.flash_linear_attention.ops.fused_recurrent import fused_recurrent_gated_delta_rule_fwd

    states = torch.cat([initial_state[:1], initial_state])  # slot 0 is not used
    slots = torch.arange(1, len(states), dtype=torch.int32)[:, None].repeat(1, k.size(1))
    scale = k.size(-1) ** -0.5
    out, states = fused_recurrent_gated_delta_rule_fwd(
        q, k, v, g, beta, scale, states, cu_seqlens=cu_seqlens, ssm_state_indices=slots
    )
    return out, states[1:]
