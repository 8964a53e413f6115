# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

from functools import partial

from ascend_engine import Engine
from engine_checks import history_is_found_again


def test_history_outlives_the_engine(model, plain, prompts, tmp_path):
    """The engine has a data-parallel rank, by which its files are named."""
    few, start = prompts[:6], partial(Engine, model, environment={"VLLM_DP_RANK": "1"})
    history_is_found_again(start, tmp_path / "history", 1, few, plain.run(few))
