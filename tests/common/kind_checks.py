# SPDX-License-Identifier: Apache-2.0
"""Checks of requests without verified drafts: beam search and pooling."""

import pace

PROMPTS = [[5, 6, 7, 8] * 4, [9, 3, 4] * 5]


def beam_search_is_that_of_plain(model):
    """Beam search requests one token for each beam. It needs a tokenizer."""
    from vllm import LLM
    from vllm.sampling_params import BeamSearchParams

    sizes = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 64}
    beams, asked = [], [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    for speculative in (None, {"method": "sam", "num_speculative_tokens": 3, "sam": {}}):
        llm = LLM(str(model), dtype="float32", enforce_eager=True, speculative_config=speculative, **sizes)
        searched = llm.beam_search(asked, BeamSearchParams(beam_width=3, max_tokens=8))
        beams.append([[beam.tokens for beam in output.sequences] for output in searched])
        llm.llm_engine.engine_core.shutdown()
    assert beams[0] == beams[1] and len(beams[0][0]) == 3


def pooling_is_served(start, model):
    """start: the function that starts an Engine."""
    from vllm import PoolingParams

    found = []
    for sam in (None, {}):
        engine, vectors = start(model, sam, runner="pooling", convert="embed"), {}
        with pace.kept_with(engine.engine):  # both requests are in one batch, because rounding depends on it
            for at, prompt in enumerate(PROMPTS):
                engine.engine.add_request(str(at), {"prompt_token_ids": prompt}, PoolingParams(task="embed"))
            while engine.engine.has_unfinished_requests():
                vectors |= {one.request_id: one.outputs.data.tolist() for one in engine.engine.step() if one.finished}
        engine.stop()
        found.append(vectors)
    assert found[0] == found[1] and len(found[0]) == 2
