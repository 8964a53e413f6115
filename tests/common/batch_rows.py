# SPDX-License-Identifier: Apache-2.0
"""A check of the batches of vLLM's own runner and of vllm-ascend's."""


def check_allowed_tokens_move(module, *block_sizes):
    """Allowed tokens move with their request when rows are swapped or a free row is filled; a new request without
    allowed tokens in the vacated row may sample all tokens.

    module: module of an InputBatch; block_sizes: its last arguments.
    """
    import torch
    from vllm import SamplingParams

    batch, everything = module.InputBatch(4, 16, 16, torch.device("cpu"), False, 50, *block_sizes), list(range(50))

    def add(name, tokens):
        text = {"prompt_token_ids": [1], "output_token_ids": [], "num_computed_tokens": 0, "block_ids": ([0],)}
        params = {"sampling_params": SamplingParams(allowed_token_ids=tokens), "pooling_params": None}
        fixed = {"mm_features": [], "generator": None}
        batch.add_request(module.CachedRequestState(req_id=name, **text, **params, **fixed))

    def allowed():
        batch.refresh_metadata()
        masks = batch.sampling_metadata.allowed_token_ids_mask
        return {name: (~masks[row]).nonzero().flatten().tolist() for name, row in batch.req_id_to_index.items()}

    for name, tokens in (("a", [1, 2]), ("b", None), ("c", [3, 4])):
        add(name, tokens)
    batch.swap_states(0, 2)
    batch.swap_states(0, 1)
    assert allowed() == {"a": [1, 2], "b": everything, "c": [3, 4]}, (module, allowed())
    batch.remove_request("b")
    batch.condense()
    add("d", None)
    assert allowed() == {"a": [1, 2], "c": [3, 4], "d": everything}, (module, allowed())
