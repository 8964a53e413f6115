# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

from functools import partial

import pytest
from ascend_engine import OLD, Engine
from engine_checks import history_is_found_again


def test_history_outlives_the_engine(model, plain, prompts, tmp_path):
    """With 0.23 the engine has a data-parallel rank, by which its files are named."""
    few, rank = prompts[:6], 0 if OLD else 1
    start = partial(Engine, model, environment={"VLLM_DP_RANK": str(rank)})
    history_is_found_again(start, tmp_path / "history", rank, few, plain.run(few))


@pytest.mark.skipif(not OLD, reason="the engine of the test before has one")
def test_rank_of_data_parallelism_names_the_history(checked): ...
