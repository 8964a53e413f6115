# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

import history
from ascend_engine import Engine, settled, speculated


def test_history_outlives_the_engine(model, plain, prompts, tmp_path):
    expected, folder = plain.run(prompts[:6]), tmp_path / "history"
    history.leave(folder, 0, prompts[:6], expected)
    engine = Engine(model, sam={"threshold": 64, "history": str(folder)})
    assert engine.run(prompts[:6]) == expected
    speculated(engine)
    assert engine.drafter()["accepted_history"] > 50
    settled(engine)
    engine.stop()
    assert history.texts(folder, 0) == 12


def test_rank_of_data_parallelism_names_the_history(npu_unit):
    assert npu_unit["check_rank_of_data_parallelism_names_the_history"] is None
