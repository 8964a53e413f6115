# SPDX-License-Identifier: Apache-2.0
"""Tests of beam search, pooling and prompts of embeddings with the plugin."""

import kind_checks
import pytest
from conftest import SEEDED, start
from kind_checks import PROMPTS

pytestmark = pytest.mark.slow


def test_beam_search_is_that_of_plain(model, device):
    kind_checks.beam_search_is_that_of_plain(model)


def test_pooling_is_served(model, device):
    kind_checks.pooling_is_served(start, model)


def test_prompts_of_embeddings(model, device, plain):
    """A prompt of embeddings gets the same answer as the prompt of its tokens."""
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
