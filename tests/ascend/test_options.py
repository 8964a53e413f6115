# SPDX-License-Identifier: Apache-2.0
"""Options of method sam reach the configuration, and bad ones and settings beside which it cannot be are one sentence.

On vllm-ascend's platform (npu_options.py); tests/engine/test_options.py has vLLM's own.
"""

import pytest
from ascend_engine import OLD


def test_good_options_reach_the_config(npu_unit):
    assert npu_unit["check_good_options_reach_the_config"] is None


def test_bad_option_is_one_sentence(npu_unit):
    assert npu_unit["check_bad_option_is_one_sentence"] is None


def test_pipelines_and_models_that_keep_a_state_are_refused(npu_unit):
    assert npu_unit["check_pipelines_and_models_that_keep_a_state_are_refused"] is None


@pytest.mark.skipif(not OLD, reason="vLLM 0.23 refuses them together with speculation, or loads no plugins")
def test_processors_of_logits_are_refused(npu_unit):
    """vllm-ascend would apply them to the rows behind drafts alone."""
    assert npu_unit["check_processors_of_logits_are_refused"] is None


@pytest.mark.skipif(OLD, reason="0.11 has no such settings")
def test_settings_that_change_the_distribution_or_the_noise_are_refused(npu_unit):
    assert npu_unit["check_settings_that_change_the_distribution_or_the_noise_are_refused"] is None


@pytest.mark.skipif(not OLD, reason="0.23 has full graphs of k + 1 tokens a request")
def test_full_graphs_are_refused(npu_unit):
    assert npu_unit["check_full_graphs_are_refused"] is None
