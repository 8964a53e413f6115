# SPDX-License-Identifier: Apache-2.0
"""Tests of LoRA adapters, beam search and pooling with method sam."""

from pathlib import Path

import adapter
import kind_checks
import pytest
from cpu_engine import Engine
from engine_checks import settled, speculated
from kind_checks import PROMPTS

TINY = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"


def test_adapters_with_drafts(model, plain, tmp_path):
    """Requests with and without an adapter share prompts, and therefore drafts."""
    prompts, adapters = PROMPTS * 2, [adapter.save(tmp_path)] * 2 + [None] * 2
    engines = [Engine(model, sam, **adapter.SETTINGS) for sam in (None, {"switch": "batch", "min_prob": 0})]
    expected, answers = (engine.run(prompts, 40, adapters=adapters) for engine in engines)
    assert answers == expected and answers[2:] == plain.run(PROMPTS, 40) and answers[:2] != answers[2:]
    speculated(engines[1])
    settled(engines[1])
    for engine in engines:
        engine.stop()


@pytest.mark.slow
def test_beam_search_is_that_of_plain():
    kind_checks.beam_search_is_that_of_plain(TINY)


@pytest.mark.slow
def test_pooling_is_served(model):
    kind_checks.pooling_is_served(Engine, model)
