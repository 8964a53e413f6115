# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's rejection sampler over the stand-in."""

import pytest
from ascend_engine import OLD
from distribution import loaded, samples_as_the_model


@pytest.mark.skipif(OLD, reason="0.11 has no logprob_token_ids")
def test_upstreams_verification_returns_logprob_token_ids(checked): ...


def test_an_engines_samples_follow_the_models_distribution(sam, model):
    """By rejection sampling, drafts for batches of any size: 9,984 tokens in pairs."""
    sam.ask("keep_off", threshold=64)
    samples_as_the_model(sam, loaded(model), 4_992, 64)
    sam.ask("keep_off", threshold=8)
