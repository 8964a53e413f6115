# SPDX-License-Identifier: Apache-2.0
"""Tests of fixes of vLLM's CPU backend that speculation and weight updates need."""

import inspect
import random
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from batch_rows import check_allowed_tokens_move
from tiny_qwen3 import VOCAB


def test_recovery_twin_accepts_the_samplers_keyword():
    from vllm.utils.cpu_triton_utils import sample_recovered_tokens_kernel

    assert inspect.signature(sample_recovered_tokens_kernel.func).parameters["USE_FP64_GUMBEL"].default is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_expand_writes_the_callers_tensor(dtype):
    import vllm._custom_ops  # noqa: F401  (loads the kernels)
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
    """A token that is sampled after the first part of a prompt is discarded. In the second run most of the prompt is in
    the prefix cache."""
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
    """The step has a placeholder per output column, or, if the plan counts drafts as accepted, 1 + number of drafts."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    batch = InputBatch.__new__(InputBatch)
    batch._req_ids, batch.prev_req_id_to_index = ["a"], {"a": 0}
    batch.sampling_metadata = SimpleNamespace(output_token_ids=[[5, -1, -1, -1, -1]])
    batch.sampled_token_ids_cpu, batch.async_copy_ready_event = torch.tensor([sampled]), mock.Mock()
    if num_drafts is not None:
        batch.prev_num_draft_tokens = np.array(num_drafts)
    batch.update_async_output_token_ids()
    assert batch.sampling_metadata.output_token_ids == [expected]


def test_rows_of_allowed_tokens_move_with_their_requests():
    from vllm.v1.worker import gpu_input_batch

    check_allowed_tokens_move(gpu_input_batch, [8], [8])
