# SPDX-License-Identifier: Apache-2.0
"""Repairs of vLLM's CPU backend that speculation and weight updates stand on."""

import inspect
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_qwen3 import VOCAB


def test_recovery_twin_accepts_the_samplers_keyword():
    from vllm.utils.cpu_triton_utils import sample_recovered_tokens_kernel

    assert inspect.signature(sample_recovered_tokens_kernel.func).parameters["USE_FP64_GUMBEL"].default is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_expand_writes_the_callers_tensor(dtype):
    import vllm._custom_ops  # noqa: F401  (the kernels)
    from vllm.utils.cpu_triton_utils import expand_kernel

    out = torch.full((5,), 77, dtype=dtype)
    values = torch.tensor([2, 0, 5], dtype=dtype)
    expand_kernel[(3,)](out, values, torch.tensor([2, 2, 5], dtype=torch.int32), 5, 1, MAX_NUM_TOKENS=32)
    assert out.tolist() == [2, 2, 1, 1, 1]


def test_unpacked_linear_follows_its_weight(monkeypatch):
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    monkeypatch.setenv("VLLM_CPU_PACK_WEIGHTS", "0")
    layer = torch.nn.Linear(64, 64, bias=False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    x = torch.randn(3, 64)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(64))
        assert torch.equal(layer.cpu_linear(x, layer.weight, None), x)


def test_seeded_request_keeps_its_text_where_its_prompt_is_split(plain):
    """What is sampled behind the first part of a prompt is discarded. The second time most of the prompt is in the
    cache."""
    rng = random.Random(6)
    prompts = [[rng.randrange(VOCAB - 1) for _ in range(400)] for _ in range(3)]
    config = plain.engine.vllm_config
    assert config.scheduler_config.long_prefill_token_threshold < 400 and config.cache_config.enable_prefix_caching
    split = plain.run(prompts, 12, temperature=1.0, seed=9)
    assert plain.run(prompts, 12, temperature=1.0, seed=9) == split
    assert plain.run(prompts, 12, temperature=1.0, seed=10) != split


@pytest.mark.parametrize(
    ("num_drafts", "sampled", "expected"),
    [(None, [7], [5, -1, -1, -1, 7]), ([3], [7], [5, 7]), ([1], [7, 8], [5, -1, -1, 7, 8]), ([3], [7, -1], [5, 7])],
)
def test_the_placeholders_of_the_latest_step_are_completed(num_drafts, sampled, expected):
    """One for each column of its output; where the plan counts drafts as accepted, one and one for each of them."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    batch = InputBatch.__new__(InputBatch)
    batch._req_ids, batch.prev_req_id_to_index = ["a"], {"a": 0}
    batch.sampling_metadata = SimpleNamespace(output_token_ids=[[5, -1, -1, -1, -1]])
    batch.sampled_token_ids_cpu, batch.async_copy_ready_event = (
        torch.tensor([sampled]),
        SimpleNamespace(synchronize=lambda: None),
    )
    if num_drafts is not None:
        batch.prev_num_draft_tokens = np.array(num_drafts)
    batch.update_async_output_token_ids()
    assert batch.sampling_metadata.output_token_ids == [expected]


def test_rows_of_allowed_tokens_move_with_their_requests():
    """By a swap, and into a row that became free; a request without such tokens in the row left behind may sample
    all."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    batch = InputBatch(4, 16, 16, torch.device("cpu"), False, VOCAB, [8], [8])

    def add(name, allowed):
        params = SamplingParams(allowed_token_ids=allowed)
        batch.add_request(CachedRequestState(name, [1], None, params, None, ([0],), 0, []))

    def allowed():
        batch.refresh_metadata()
        masks = batch.sampling_metadata.allowed_token_ids_mask
        return {name: (~masks[row]).nonzero().flatten().tolist() for name, row in batch.req_id_to_index.items()}

    everything = list(range(VOCAB))
    for name, own in (("a", [1, 2]), ("b", None), ("c", [3, 4])):
        add(name, own)
    batch.swap_states(0, 2)
    batch.swap_states(0, 1)
    assert allowed() == {"a": [1, 2], "b": everything, "c": [3, 4]}
    batch.remove_request("b")
    batch.condense()
    add("d", None)
    assert allowed() == {"a": [1, 2], "c": [3, 4], "d": everything}
