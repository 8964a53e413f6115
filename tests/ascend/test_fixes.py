# SPDX-License-Identifier: Apache-2.0
"""Upstream bugs that stand in the way of drafting; the checks themselves are in npu_unit."""


def test_ngram_draft_goes_to_its_own_request(npu_unit):
    assert npu_unit["check_ngram_draft_goes_to_its_own_request"] is None


def test_ngram_near_max_model_len(npu_unit):
    assert npu_unit["check_ngram_near_max_model_len"] is None


def test_graph_sizes_count_no_draft_layers(npu_unit):
    assert npu_unit["check_graph_sizes_count_no_draft_layers"] is None
