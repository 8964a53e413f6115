# SPDX-License-Identifier: Apache-2.0
"""Kinds of requests with the plugin: beam search, pooling, prompts of embeddings."""

import pytest
from conftest import SEEDED, start

pytestmark = pytest.mark.slow
PROMPTS = [[5, 6, 7, 8] * 4, [9, 3, 4] * 5]


def test_beam_search_is_that_of_plain(model, device):
    """It asks for one token of each beam, so nothing is verified."""
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


def test_pooling_is_served(model, device):
    from vllm import PoolingParams

    engine = start(model, {}, runner="pooling", convert="embed")
    vectors = {}
    for at, prompt in enumerate(PROMPTS):
        engine.engine.add_request(str(at), {"prompt_token_ids": prompt}, PoolingParams(task="embed"))
    while engine.engine.has_unfinished_requests():
        vectors |= {one.request_id: one.outputs.data.tolist() for one in engine.engine.step() if one.finished}
    engine.stop()
    assert len(vectors) == 2 and vectors["0"] != vectors["1"]


def test_prompts_of_embeddings(model, device, plain):
    """They are answered as prompts of the tokens are."""
    from vllm import SamplingParams

    engine = start(model, SEEDED | {"min_prob": 0}, enable_prompt_embeds=True)
    (table,) = engine.engine.collective_rpc(
        lambda worker: worker.model_runner.model.model.embed_tokens.weight.detach().cpu()
    )
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
    answers = {}
    for at, prompt in enumerate(PROMPTS):
        engine.engine.add_request(str(at), {"prompt_embeds": table[prompt].clone()}, params)
    while engine.engine.has_unfinished_requests():
        answers |= {one.request_id: [*one.outputs[0].token_ids] for one in engine.engine.step() if one.finished}
    assert [answers["0"], answers["1"]] == plain.run(PROMPTS, 40)
    assert engine.drafter()["proposed"] > 0
    engine.stop()
