# SPDX-License-Identifier: Apache-2.0
"""Verification at temperature 1 draws from the model's own distribution."""

import pytest
from distribution import chi_square_p_value, loaded, model_distribution, repeated_seeds, samples_as_the_model

AT_ONCE = 64


@pytest.fixture(scope="module")
def network(model):
    return loaded(model)


def set_threshold(worker, threshold):
    """Runs in a worker."""
    worker.model_runner.drafter.switch.threshold = threshold


@pytest.fixture
def drafting(sam):
    """Drafts for batches of any size."""
    sam.engine.collective_rpc(set_threshold, args=(AT_ONCE,))
    yield sam
    sam.engine.collective_rpc(set_threshold, args=(8,))


def test_sampled_distribution_is_the_models(network, drafting):
    samples_as_the_model(drafting, network, 6_400, AT_ONCE)


def test_repeated_seeds_keep_the_distribution(network, drafting):
    """24,576 tokens."""
    p, count = model_distribution(network), 2048
    *_, last = repeated_seeds(drafting, count, AT_ONCE)
    assert chi_square_p_value(last.ravel(), p.ravel() * count) > 1e-4
