# SPDX-License-Identifier: Apache-2.0
"""Kinds of requests with method sam: LoRA adapters, beam search, pooling."""

import json
from pathlib import Path

import pytest
from cpu_engine import Engine
from engine_checks import settled, speculated

TINY = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"
PROMPTS = [[5, 6, 7, 8] * 4, [9, 3, 4] * 5]
RANK = 8


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A LoRA adapter of the queries and values, large enough to change every answer."""
    import torch
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(1)
    weights = {}
    for layer in (0, 1):
        for name, width in (("q_proj", 64), ("v_proj", 32)):
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{module}.lora_A.weight"] = torch.randn(RANK, 64) * 0.2
            weights[f"{module}.lora_B.weight"] = torch.randn(width, RANK) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    shape = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(shape | {"target_modules": ["q_proj", "v_proj"]}))
    return LoRARequest("adapter", 1, str(folder))


def test_adapters_with_drafts(model, adapter, plain):
    """Requests with an adapter and without, which share prompts and so drafts."""
    prompts, adapters = PROMPTS * 2, [adapter] * 2 + [None] * 2
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
    engines = [Engine(model, sam, **lora) for sam in (None, {"switch": "batch", "min_prob": 0})]
    expected, answers = (engine.run(prompts, 40, adapters=adapters) for engine in engines)
    assert answers == expected and answers[2:] == plain.run(PROMPTS, 40) and answers[:2] != answers[2:]
    speculated(engines[1])
    settled(engines[1])
    for engine in engines:
        engine.stop()


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
