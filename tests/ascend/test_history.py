# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

from functools import partial

from ascend_engine import Engine
from engine_checks import history_is_found_again


def test_history_outlives_the_engine(model, plain, prompts, tmp_path):
    few = prompts[:6]
    history_is_found_again(partial(Engine, model), tmp_path / "history", 0, few, plain.run(few))


def test_rank_of_data_parallelism_names_the_history(npu_unit):
    assert npu_unit["check_rank_of_data_parallelism_names_the_history"] is None
