# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

from functools import partial

from cpu_engine import Engine
from engine_checks import history_is_found_again


def test_history_outlives_the_engine(model, plain, prompts, tmp_path, monkeypatch):
    """The engine has a data-parallel rank, by which its files are named."""
    monkeypatch.setenv("VLLM_DP_RANK", "1")
    few = prompts[:6]
    assert plain.random_seed() == 0
    history_is_found_again(partial(Engine, model), tmp_path / "history", 1, few, plain.run(few))
