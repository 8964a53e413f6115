# SPDX-License-Identifier: Apache-2.0
"""With the default, `rejection`, sampled tokens follow the model's distribution, whatever is drafted."""

import numpy as np
import pytest
import tiny_qwen3
import torch
import triton
from conftest import start
from distribution import chi_square_p_value
from engine_checks import speculated
from tiny_qwen3 import VOCAB
from triton import language as tl
from triton.language.random import rand

TEXTS, LENGTH = 25, 400
TEMPERATURE = 0.5


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Return a model whose next token depends only on the last token, and its distributions [VOCAB, VOCAB]."""
    from transformers import Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("chain")
    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    network = Qwen3ForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        logits = network(torch.arange(VOCAB)[:, None]).logits[:, 0]
    network.save_pretrained(folder)
    return folder, (logits.double() / TEMPERATURE).softmax(1).numpy()


def first_tokens(llm, prompt, settings, num=16):
    """Return the first tokens of equal requests that bypass the Python front end, as with vLLM's Rust front end."""
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    for number in range(num):
        request = EngineCoreRequest(
            request_id=f"raw {number}",
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=1, detokenize=False, **settings),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        llm.engine_core.add_request(request)
    found = []
    while len(found) < num:
        found += [token for output in llm.engine_core.get_output().outputs for token in output.new_token_ids]
    return found


@triton.jit
def draw_twice(seeds_ptr, offsets_ptr, out_ptr):
    row = tl.program_id(0)
    seed, offset = tl.load(seeds_ptr + row), tl.load(offsets_ptr + row)
    tl.store(out_ptr + 2 * row, tl.rand(seed, offset))
    tl.store(out_ptr + 2 * row + 1, rand(seed, offset))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_random_numbers_are_those_of_triton(dtype):
    """The interpreter draws with NumPy (triton_interpreter.speed.uniform)."""
    numbers = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, (2, 100), dtype=dtype)
    assert tl.rand is not rand
    out = torch.zeros(100, 2)
    draw_twice[(100,)](*numbers, out)
    assert (out[:, 0] == out[:, 1]).all() and len(out.unique()) > 90


SYNCHRONOUS = pytest.param({"threshold": TEXTS}, False, False, marks=pytest.mark.slow, id="synchronous")


@pytest.mark.parametrize(
    ("sam", "asynchronous", "has_model"),
    [
        SYNCHRONOUS,
        pytest.param({"switch": "auto"}, True, False, id="auto"),
        pytest.param({"switch": "auto"}, True, True, id="model", marks=pytest.mark.slow),
    ],
)
def test_law_of_the_next_token(chain, device, sam, asynchronous, has_model, tmp_path):
    """A chi-square test over all pairs of consecutive tokens. With `auto` drafts, and therefore samples, depend on the
    time of steps, so the p-value has a bound below which no run falls by chance."""
    folder, law = chain
    drafter = None
    if has_model:
        tiny_qwen3.save_noisy(tmp_path, folder)
        drafter = {"method": "draft_model", "model": str(tmp_path)}
    settings = {"async_scheduling": asynchronous, "max_num_seqs": TEXTS, "max_model_len": 512, "seed": 1}
    engine = start(folder, sam, 3 if has_model else 7, drafter, **settings)
    first = [7 * i % VOCAB for i in range(TEXTS)]
    each = [{"temperature": TEMPERATURE, "seed": 1000 * asynchronous + i} for i in range(TEXTS)]
    answers = engine.run([[token] for token in first], LENGTH, each=each)
    speculated(engine)
    drafted, accepted = engine.count("drafted"), engine.count("accepted")
    (counted,) = engine.engine.collective_rpc("sam_stats")
    assert has_model == (counted["accepted_model_tokens"] > 200) == (counted["model_tokens"] > 0)
    assert len({*first_tokens(engine.engine, first[:1], each[0])}) > 1, "later drafts would depend on the seed of all"
    engine.stop()
    counts = np.zeros_like(law)
    for token, answer in zip(first, answers, strict=True):
        np.add.at(counts, ([token, *answer[:-1]], answer), 1)
    assert counts.sum() == TEXTS * LENGTH
    p = chi_square_p_value(counts, law * counts.sum(1, keepdims=True), least=5)
    print(f"p {p}; drafted {drafted}, accepted {accepted}")
    assert p > 1e-6
    assert accepted > 0.3 * drafted
