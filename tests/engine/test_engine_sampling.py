# SPDX-License-Identifier: Apache-2.0
"""Verification at temperature 1 draws from the model's own distribution."""

import pytest
from distribution import (
    chi_square_p_value,
    loaded,
    model_distribution,
    repeated_seeds,
    sample,
    samples_as_the_model,
)


@pytest.fixture(scope="module")
def network(model):
    return loaded(model)


def test_sampled_distribution_is_the_models(network, sam):
    samples_as_the_model(sam, network, 12_000)


def test_repeated_seeds_keep_the_distribution(network, sam):
    """24,000 tokens."""
    p, count = model_distribution(network), 2000
    *_, last = repeated_seeds(sam, count)
    assert chi_square_p_value(last.ravel(), p.ravel() * count) > 1e-4


def test_the_test_notices_a_wrong_temperature(network, sam):
    pairs, _, _ = sample(sam, 2048, temperature=0.8)
    assert chi_square_p_value(pairs.ravel(), model_distribution(network).ravel() * 2048) < 1e-6
