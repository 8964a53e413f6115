# SPDX-License-Identifier: Apache-2.0
"""vLLM's client sends all requests of a prompt to the same data-parallel engine."""

import asyncio

import client_checks
import pytest
from conftest import AUTO
from sam_core.engines.vllm.plugin import front

CLIENT = ["answers_to_a_prompt_share_an_engine", "other_choices_stay_first"]


@pytest.mark.parametrize("check", [*CLIENT, "vllm_chooses_by_load_without_shared_indexes"])
def test_client(check):
    front.install()
    getattr(client_checks, f"check_{check}")()


def test_both_engines_draft(model, device, plain, prompts):
    """AsyncLLM sends the requests to two engines, each in its own process."""
    from sam_core.engines.vllm.step_log import drafter_counters
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    async def answers():
        speculative = {"method": "sam", "num_speculative_tokens": 3, "sam": AUTO}
        sizes = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
        fixed = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "data_parallel_size": 2}
        arguments = AsyncEngineArgs(model=str(model), speculative_config=speculative, **sizes, **fixed)
        engine = AsyncLLM.from_engine_args(arguments)
        params = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False, max_tokens=20)

        async def answer(number, prompt):
            async for output in engine.generate({"prompt_token_ids": prompt}, params, str(number)):
                tokens = output.outputs[0].token_ids
            return list(tokens)

        try:
            found = await asyncio.gather(*(answer(i, prompt) for i, prompt in enumerate(prompts)))
            return found, await drafter_counters(engine), await engine.collective_rpc("sam_stats")
        finally:
            engine.shutdown()

    found, both, (first,) = asyncio.run(answers())
    assert found == plain.run(prompts, 20)
    assert both["proposed"] > first["proposed"] > 0
