# SPDX-License-Identifier: Apache-2.0
"""Verification at temperature 1 samples from the model's own distribution."""

from distribution import loaded, samples_as_the_model

AT_ONCE = 64


def set_threshold(worker, threshold):
    """Set the threshold of the switch; runs in a worker."""
    worker.model_runner.drafter.switch.threshold = threshold


def test_sampled_distribution_is_the_models(model, sam):
    """The threshold is raised so that the switch stays on for batches of any size."""
    sam.engine.collective_rpc(set_threshold, args=(AT_ONCE,))
    samples_as_the_model(sam, loaded(model), 12_800, AT_ONCE)
    sam.engine.collective_rpc(set_threshold, args=(8,))
