# SPDX-License-Identifier: Apache-2.0
"""Models whose layers keep a state of each request: the text is that of the engine without speculation."""

import random
from pathlib import Path

import pytest
import tiny_qwen3
import vllm
from conftest import SEEDED, TIGHT, start
from engine_checks import speculated
from llm_engine import COLUMNS
from sam_core.engines.hooks import problem
from sam_core.engines.vllm import hooks
from sam_core.engines.vllm.plugin import front
from schedule_draws import WORDS
from started import started
from test_options import configure
from triton_interpreter.gated_delta_net import compute_on_cpu

WRONG = problem(Path(vllm.__file__).parent, hooks.STATES)
right = pytest.mark.skipif(
    WRONG is not None, reason="refused with this vLLM; test_plugin.py starts these with a later one"
)
SAMPLED = [{"temperature": 1.0, "seed": seed} for seed in range(8)]


@pytest.fixture(scope="module")
def stateful(tmp_path_factory, device):
    compute_on_cpu()
    folder = tmp_path_factory.mktemp("qwen3-next")
    tiny_qwen3.save_next(folder)
    tiny_qwen3.save_tokenizer(folder, WORDS)
    return folder


plain = started(start, "module", model="stateful")
sometimes = started(start, "module", model="stateful", sam=SEEDED)
"""Drafts while at most 6 requests run."""
synchronous = started(start, "module", model="stateful", sam=SEEDED, k=7, async_scheduling=False)
with_mtp = started(start, "module", model="stateful", sam=SEEDED, k=2, drafter={"method": "mtp"})
tight = started(
    start,
    "module",
    model="stateful",
    sam=SEEDED,
    **TIGHT | {"max_num_batched_tokens": 128, "num_gpu_blocks_override": 18},
)


@pytest.fixture(scope="module")
def texts(plain, prompts):
    """Prompts, and lengths and answers of the engine without speculation, greedy and sampled with seeds."""
    lengths = [random.Random(i).randrange(12, 40) for i in range(8)]
    return prompts, lengths, plain.run(prompts, lengths), plain.run(prompts, lengths, each=SAMPLED)


def changed(engine):
    """Drafts were accepted, and steps without drafts came after that."""
    speculated(engine)
    drafted, accepted = (COLUMNS.index(name) for name in ("drafted", "accepted"))
    first = next(i for i, row in enumerate(engine.rows) if row[accepted])
    assert any(not row[drafted] for row in engine.rows[first:])


@right
@pytest.mark.parametrize("name", ["sometimes", "synchronous", "with_mtp"])
def test_text_is_that_without_speculation(name, texts, request):
    engine, (prompts, lengths, greedy, sampled) = request.getfixturevalue(name), texts
    assert engine.run(prompts, lengths, stagger=3) == greedy
    changed(engine)
    assert engine.run(prompts, lengths, stagger=2, each=SAMPLED) == sampled
    speculated(engine)
    (counted,) = engine.engine.collective_rpc("sam_stats")
    assert (counted["model_tokens"] > 0) == (name == "with_mtp")
    if name == "with_mtp":
        assert engine.engine.collective_rpc(takes_weights_from_verl) == [True]


def takes_weights_from_verl(worker):
    """Runs in a worker: as verl 0.9.1 finds the model of an MTP head (workers/rollout/vllm_rollout/utils.py)."""
    return worker.model_runner.drafter.model is worker.model_runner.speculator.model


@pytest.fixture(scope="module")
def block(plain):
    """Tokens of a block of the cache: those of the layers with attention, whose blocks have the size of a state's."""
    return plain.engine.collective_rpc(lambda worker: worker.vllm_config.cache_config.block_size)[0]


@pytest.fixture(scope="module")
def long(block):
    """Four prompts whose answers begin another block."""
    draw = random.Random(0)
    return [[draw.randrange(tiny_qwen3.VOCAB - 1) for _ in range(block - 4 - 2 * i)] for i in range(4)]


@right
def test_text_is_that_without_speculation_after_preemption(plain, tight, long):
    prompts = [prompt[24:] for prompt in long + long]
    assert tight.run(prompts, 48, priorities=[*range(8, 0, -1)]) == plain.run(prompts, 48)
    speculated(tight)
    assert tight.log.preemptions > 0


@right
def test_a_prefix_in_the_cache_and_a_block_that_ends_in_an_answer(plain, sometimes, long, block):
    more = [long[i] + long[i + 1] for i in range(3)]
    for prompts in (long, more, more):
        assert sometimes.run(prompts, 24, stagger=1) == plain.run(prompts, 24)
        speculated(sometimes)
    assert all(output.num_cached_tokens >= block for output in sometimes.outputs)


@right
def test_a_session_is_refused_and_the_engine_goes_on(sometimes, texts):
    prompts, lengths, greedy, _ = texts
    with pytest.raises(ValueError, match="send each turn as a request with all tokens before it"):
        sometimes.run_session([prompts[0], prompts[1]], [4, 4])
    assert sometimes.run(prompts[:2], lengths[:2]) == greedy[:2]


@right
def test_defaults(stateful, device, monkeypatch):
    monkeypatch.setattr(front, "why_not_adaptive", device.why_not_adaptive)
    said = []
    monkeypatch.setattr(front.LOGGER, "warning", lambda text, *parts: said.append(text % parts))
    for k, first in ((None, 3), (7, 7), (8, 7)):
        made = configure(stateful, None, speculative={"num_speculative_tokens": k}).speculative_config
        by_size = [*map(tuple, made.num_speculative_tokens_per_batch_size)]
        assert by_size == [(1, 8, first), (9, 32, 3), (33, 33, 0)] and not made.enable_adaptive_verification
        assert made.num_speculative_tokens == k or k is None and made.num_speculative_tokens == 3
        assert any(text.startswith("num_speculative_tokens is 8") for text in said) == (k == 8)


@pytest.mark.skipif(WRONG is None, reason="this vLLM reads the right states")
def test_a_vllm_that_reads_wrong_states_is_refused(stateful, device):
    with pytest.raises(ValueError, match="install vLLM 0.32 or later"):
        configure(stateful, {})
