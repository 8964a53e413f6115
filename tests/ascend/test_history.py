# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

from functools import partial

import history
from ascend_engine import Engine, settled, speculated


def test_history_outlives_the_engine(model, plain, prompts, tmp_path):
    few = prompts[:6]
    start, folder = partial(Engine, model), tmp_path / "history"
    history.check_it_is_found_again(start, speculated, settled, folder, 0, few, plain.run(few))


def test_rank_of_data_parallelism_names_the_history(npu_unit):
    assert npu_unit["check_rank_of_data_parallelism_names_the_history"] is None
