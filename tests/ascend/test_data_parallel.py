# SPDX-License-Identifier: Apache-2.0
"""Tests of vLLM's client of several data-parallel engines; in test_experts.py it serves two real engines."""

import pytest

CLIENT = ["answers_to_a_prompt_share_an_engine", "other_choices_stay_first"]


@pytest.mark.parametrize("check", [*CLIENT, "vllm_chooses_by_load_without_shared_indexes"])
def test_client(npu_unit, check):
    assert npu_unit[f"check_{check}"] is None
