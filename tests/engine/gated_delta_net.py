# SPDX-License-Identifier: Apache-2.0
"""Gated delta nets on the CPU, computed token by token in float32.

This code reads the metadata that vLLM creates for its GPU kernels (model_executor/layers/mamba/gdn), and reads and
writes the same states. Each request has one state of the convolution, with room for k more tokens, and k + 1 states of
the delta rule.
"""

import functools

import torch
import torch.nn.functional as F


@functools.cache
def compute_on_cpu():
    """Make vLLM's layer compute with this module, also in processes that are forked afterwards."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import _CPU_MOE_ACT_FN, MoEActivation
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as layers

    vars(_custom_ops).pop("causal_conv1d_weight_pack", None)  # reorders weights for kernels in bfloat16
    # Without AVX-512 vLLM computes experts in torch, but fails to create their activation during a step.
    _CPU_MOE_ACT_FN[MoEActivation.SILU] = SiluAndMul.forward_native
    net = layers.QwenGatedDeltaNetAttention
    init = net.__init__

    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self._forward_method = self.forward_cuda  # its operator calls _forward_core

    net.__init__ = __init__
    net._warmup_prefill_kernels = lambda *args, **kwargs: None

    def core(self, mixed_qkv, b, a, core_attn_out):
        metadata = layers.get_forward_context().attn_metadata
        if metadata is not None:
            conv, states = self.kv_cache
            if not layers.is_conv_state_dim_first():
                conv = conv.transpose(-1, -2)
            for row in rows(metadata[self.prefix]):
                compute(self, conv, states, *row, mixed_qkv, b, a, core_attn_out)

    net._forward_core = core


def rows(metadata):
    """Yield (tokens, slots, accepted, begun) for each request: the places of its tokens in the batch; the slot of its
    state, or a list of k + 1 slots if it verifies drafts; the number of tokens of its previous step that were accepted,
    or None; whether it has a state."""
    if metadata.spec_sequence_masks is not None:
        alone = not (metadata.num_prefills or metadata.num_decodes)
        tokens = [*range(metadata.num_actual_tokens)] if alone else metadata.spec_token_indx.tolist()
        starts = metadata.spec_query_start_loc.tolist()
        slots, accepted = metadata.spec_state_indices_tensor.tolist(), metadata.num_accepted_tokens.tolist()
        for i in range(metadata.num_spec_decodes):
            yield tokens[starts[i] : starts[i + 1]], slots[i], accepted[i], True
        if alone:
            return
        tokens = metadata.non_spec_token_indx.tolist()
    else:
        tokens = [*range(metadata.num_actual_tokens)]
    starts, slots = metadata.non_spec_query_start_loc.tolist(), metadata.non_spec_state_indices_tensor.tolist()
    for i in range(len(starts) - 1):
        begun = i < metadata.num_decodes or bool(metadata.has_initial_state[i])
        yield tokens[starts[i] : starts[i + 1]], slots[i], None, begun


def compute(net, conv, states, tokens, slots, accepted, begun, mixed_qkv, b, a, out):
    """Write the outputs and the states of a request."""
    verified = accepted is not None
    first = slots[0] if verified else slots
    if not tokens or first <= 0:  # padding
        return
    weight = net.conv1d.weight.view(net.conv1d.weight.size(0), -1).float()
    before = weight.size(1) - 1
    at = accepted - 1 if verified else 0
    read = slots[at] if verified else slots
    inputs = mixed_qkv[tokens].float().T
    earlier = conv[first][:, at : at + before].float() if begun else torch.zeros(len(inputs), before)
    inputs = torch.cat([earlier, inputs], 1)
    mixed = F.silu((inputs.unfold(1, before + 1, 1) * weight[:, None]).sum(2)).T
    kept = inputs[:, 1:] if verified else inputs[:, -before:]
    conv[first][:, : kept.size(1)] = kept.to(conv.dtype)

    sizes = [size // net.tp_size for size in (net.key_dim, net.key_dim, net.value_dim)]
    query, key, value = mixed.split(sizes, -1)
    query, key = (F.normalize(x.reshape(len(tokens), -1, net.head_k_dim), dim=-1) for x in (query, key))
    value = value.reshape(len(tokens), -1, net.head_v_dim)
    heads = value.size(1) // key.size(1)
    query, key = query.repeat_interleave(heads, 1) * net.head_k_dim**-0.5, key.repeat_interleave(heads, 1)
    decay = torch.exp(-net.A_log.float().exp() * F.softplus(a[tokens].float() + net.dt_bias.float()))
    beta = torch.sigmoid(b[tokens].float())
    state = states[read].float() if begun else torch.zeros(states[first].shape)  # value heads, value, key
    for j, token in enumerate(tokens):
        state = state * decay[j][:, None, None]
        delta = (value[j] - (state * key[j][:, None]).sum(-1)) * beta[j][:, None]
        state = state + delta[:, :, None] * key[j][:, None]
        out[token] = (state * query[j][:, None]).sum(-1).to(out.dtype)
        if verified and slots[j] > 0:
            states[slots[j]] = state.to(states.dtype)
    if not verified:
        states[slots] = state.to(states.dtype)
