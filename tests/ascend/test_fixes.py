# SPDX-License-Identifier: Apache-2.0
"""Upstream bugs that stand in the way of drafting; the checks themselves are in npu_unit."""

import pytest
from ascend_engine import OLD


def test_ngram_draft_goes_to_its_own_request(npu_unit):
    assert npu_unit["check_ngram_draft_goes_to_its_own_request"] is None


def test_ngram_near_max_model_len(npu_unit):
    assert npu_unit["check_ngram_near_max_model_len"] is None


@pytest.mark.skipif(not OLD, reason="0.23 counts no layers")
def test_graph_sizes_count_no_draft_layers(npu_unit):
    assert npu_unit["check_graph_sizes_count_no_draft_layers"] is None


@pytest.mark.skipif(OLD, reason="0.11 has no list of methods")
def test_fused_moe_decoding_is_kept(npu_unit):
    assert npu_unit["check_fused_moe_decoding_is_kept"] is None


@pytest.mark.skipif(OLD, reason="0.11 asks for the numbers of drafts")
def test_generator_of_a_request_without_drafts_stays(npu_unit):
    assert npu_unit["check_generator_of_a_request_without_drafts_stays"] is None


@pytest.mark.skipif(not OLD, reason="0.23 has vLLM's methods: tests/engine/test_cpu_fixes.py")
def test_rows_of_allowed_tokens_move_with_their_requests(npu_unit):
    assert npu_unit["check_rows_of_allowed_tokens_move_with_their_requests"] is None
