# SPDX-License-Identifier: Apache-2.0
"""Tests of vLLM's own sampler for requests with seeds; tests/ascend/test_schedules.py compares whole texts."""

import dataclasses
import types
from unittest import mock

import numpy as np
import pytest
import torch
from sam_core.noise import Noise
from tiny_qwen3 import VOCAB


def test_seeded_sampling_stays_on_the_first_runner(model, monkeypatch):
    """On a GPU vLLM chooses the second runner for this model, but the second runner does not read sam_verify."""
    import vllm.config.vllm
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setattr(vllm.config.vllm, "HAS_TRITON", True)
    settings = {"model": str(model), "skip_tokenizer_init": True, "dtype": "float32"}
    both = [EngineArgs(**settings, additional_config=more) for more in ({}, {"sam_verify": "seeded"})]
    plain, seeded = (arguments.create_engine_config() for arguments in both)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    assert plain.use_v2_model_runner and not seeded.use_v2_model_runner


class Sampling:
    """vLLM's sampler and rejection sampler in mode rejection. The logits depend only on the row and the step."""

    def __init__(self, seeds):
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.sample.sampler import Sampler
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        CPUModelRunner._postprocess_triton(None)  # installs the CPU's kernels
        self.sampler = Sampler()
        self.rejection_sampler = RejectionSampler(self.sampler)
        self.generators = {i: torch.Generator().manual_seed(seed) for i, seed in enumerate(seeds) if seed is not None}

    def metadata(self, num_requests):
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata

        given = dict.fromkeys(field.name for field in dataclasses.fields(SamplingMetadata))
        given |= {"temperature": torch.ones(num_requests), "generators": self.generators}
        given |= {"all_greedy": False, "all_random": True, "no_penalties": True, "bad_words_token_ids": {}}
        outputs = [[] for _ in range(num_requests)]
        return SamplingMetadata(**given | {"output_token_ids": outputs, "logitsprocs": LogitsProcessors()})

    def step(self, number, drafts):
        """Return a list of the sampled tokens of each request in step `number`. drafts: a list for each request."""
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

        noise = [torch.Generator().manual_seed(1000 * number + i) for i in range(len(drafts))]
        sizes = [len(own) + 1 for own in drafts]
        logits = torch.cat([torch.randn(n, VOCAB, generator=g) for n, g in zip(sizes, noise, strict=True)])
        if not any(drafts):
            return self.sampler(logits, self.metadata(len(drafts))).sampled_token_ids.tolist()
        metadata = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
        last = metadata.cu_num_sampled_tokens.long() - 1
        metadata.bonus_logits_indices = last
        metadata.target_logits_indices = torch.tensor([i for i in range(len(logits)) if i not in last.tolist()])
        tokens = self.rejection_sampler(metadata, None, logits, self.metadata(len(drafts))).sampled_token_ids
        return self.rejection_sampler.parse_output(tokens, VOCAB)[0]


def test_seeded_request_that_drafts_nothing_keeps_its_text_in_a_batch_with_drafts():
    """Six requests with seeds draft nothing. Two others, one of which has a seed, draft in every second step. All
    are verified in mode rejection."""
    alone, together = Sampling(range(6)), Sampling([*range(6), 100, None])
    for number in range(24):
        drafts = [[number % VOCAB, 5], [7]] if number % 2 else [[], []]
        tokens = together.step(number, [[]] * 6 + drafts)
        assert tokens[:6] == alone.step(number, [[]] * 6) and all(tokens[6:])


def test_a_runner_made_without_its_constructor_samples_as_released():
    """Upstream's unit tests create runners by __new__, so __init__ does not set request_noise."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    assert GPUModelRunner.request_noise is None


@pytest.mark.parametrize("rows", [2, 8])
def test_one_function_filters_batches_of_all_sizes(monkeypatch, rows):
    """With Triton, vLLM uses another function for eight rows or more, which breaks ties differently."""
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    k, triton, torchs = torch.full((rows,), 2), mock.Mock(side_effect=lambda logits, *_: logits), mock.Mock()
    replaced = {"HAS_TRITON": True, "current_platform": types.SimpleNamespace(is_cpu=lambda: False)}
    replaced |= {"apply_top_k_top_p_triton": triton, "apply_top_k_top_p_pytorch": torchs}
    for name, value in replaced.items():
        monkeypatch.setattr(topk_topp_sampler, name, value, raising=False)
    noise, logits = Noise(np.zeros(rows, np.int64), np.zeros(rows, np.int64), None, "cpu"), torch.zeros(rows, VOCAB)
    plain = types.SimpleNamespace(logprobs_mode="raw_logprobs", use_fp64_gumbel=False)
    topk_topp_sampler.TopKTopPSampler.forward_native(plain, logits, noise, k, None)
    monkeypatch.setattr("sam_core.engines.vllm.sampling.verify", lambda *args: args[-1](args[2], k, None))
    metadata, sampling = types.SimpleNamespace(max_spec_len=1), types.SimpleNamespace(generators=noise)
    RejectionSampler.forward(types.SimpleNamespace(), metadata, None, logits, sampling)
    assert (triton.call_count, torchs.call_count) == (2, 0)
