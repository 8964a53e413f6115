# SPDX-License-Identifier: Apache-2.0
"""Tests of fixes of upstream bugs that prevent drafting; the checks are in npu_unit.py."""

import pytest
from ascend_engine import OLD


@pytest.mark.skipif(not OLD, reason="0.23 counts no layers")
def test_graph_sizes_count_no_draft_layers(checked): ...
@pytest.mark.skipif(OLD, reason="0.11 has no list of methods")
def test_fused_moe_decoding_is_kept(checked): ...
@pytest.mark.skipif(not OLD, reason="0.23 has vLLM's methods: tests/engine/test_cpu_fixes.py")
def test_rows_of_allowed_tokens_move_with_their_requests(checked): ...
