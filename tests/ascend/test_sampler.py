# SPDX-License-Identifier: Apache-2.0
"""Tests of vllm-ascend's rejection sampler on the stand-in for torch_npu."""

import pytest
from ascend_engine import OLD
from distribution import loaded, samples_as_the_model


@pytest.mark.skipif(OLD, reason="0.11 has no logprob_token_ids")
def test_upstreams_verification_returns_logprob_token_ids(checked): ...


def test_an_engines_samples_follow_the_models_distribution(sam, model):
    """Draws 4,992 pairs of tokens by rejection sampling. The switch stays on for all batch sizes."""
    sam.ask("keep_off", threshold=64)
    samples_as_the_model(sam, loaded(model), 4_992, 64)
    sam.ask("keep_off", threshold=8)
