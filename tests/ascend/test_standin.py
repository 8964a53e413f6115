# SPDX-License-Identifier: Apache-2.0
"""The stand-in computes what torch and vLLM compute, and refuses batches of a wrong shape; the checks are in
npu_unit."""

import pytest


@pytest.mark.parametrize(
    "check",
    [
        "an_operator_that_is_missing_names_itself",
        "device_npu_is_the_cpu",
        "a_generator_takes_back_its_last_draw",
        "a_side_stream_copies_at_the_latest_moment",
        "attention_operators_agree_with_torch",
        "slots_are_asserted",
        "rotary_operators_agree",
        "top_k_top_p_keeps_what_vllm_keeps",
        "calls_are_counted",
    ],
)
def test_standin(npu_unit, check):
    assert npu_unit[f"check_{check}"] is None
