# SPDX-License-Identifier: Apache-2.0
"""Kinds of requests with method sam: LoRA adapters, beam search, pooling."""

from pathlib import Path

import adapter
import pytest
from cpu_engine import Engine
from engine_checks import settled, speculated

TINY = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"
PROMPTS = [[5, 6, 7, 8] * 4, [9, 3, 4] * 5]


def test_adapters_with_drafts(model, plain, tmp_path):
    """Requests with an adapter and without, which share prompts and so drafts."""
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
    """It asks for one token of each beam, so nothing is verified; and it needs a tokenizer."""
    from vllm import LLM
    from vllm.sampling_params import BeamSearchParams

    beams, asked = [], [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    for speculative in (None, {"method": "sam", "num_speculative_tokens": 3, "sam": {}}):
        llm = LLM(str(TINY), dtype="float32", enforce_eager=True, max_model_len=256, speculative_config=speculative)
        searched = llm.beam_search(asked, BeamSearchParams(beam_width=3, max_tokens=12))
        beams.append([[beam.tokens for beam in output.sequences] for output in searched])
        llm.llm_engine.engine_core.shutdown()
    assert beams[0] == beams[1] and len(beams[0][0]) == 3


@pytest.mark.slow
def test_pooling_is_served(model):
    from vllm import PoolingParams

    found = []
    for sam in (None, {}):
        running, vectors = Engine(model, sam, runner="pooling", convert="embed"), {}
        for at, prompt in enumerate(PROMPTS):
            running.engine.add_request(str(at), {"prompt_token_ids": prompt}, PoolingParams(task="embed"))
        while running.engine.has_unfinished_requests():
            vectors |= {one.request_id: one.outputs.data.tolist() for one in running.engine.step() if one.finished}
        running.stop()
        found.append(vectors)
    assert found[0] == found[1] and len(found[0]) == 2
