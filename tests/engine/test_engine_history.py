# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

from functools import partial

import history
from conftest import Engine, settled, speculated


def test_history_outlives_the_engine(model, plain, prompts, tmp_path, monkeypatch):
    """The engine has a data-parallel rank, by which its files are named."""
    monkeypatch.setenv("VLLM_DP_RANK", "1")
    few = prompts[:6]
    start, folder = partial(Engine, model), tmp_path / "history"
    history.check_it_is_found_again(start, speculated, settled, folder, 1, few, plain.run(few))
