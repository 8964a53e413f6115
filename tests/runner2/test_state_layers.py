# SPDX-License-Identifier: Apache-2.0
"""Speculation does not change the text of models whose layers keep a state for each request."""

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
from triton_interpreter.state_layers import use_kernels

WRONG = problem(Path(vllm.__file__).parent, hooks.STATES)
right = pytest.mark.skipif(
    WRONG is not None, reason="refused with this vLLM; test_plugin.py starts these with a later one"
)
EACH = [{}, {}, {"temperature": 1.0, "seed": 0}, {"temperature": 1.0, "seed": 1}] * 2
"""Sampling parameters of eight requests: two greedy and two seeded, then the same again."""
SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("granite", "lfm2")]


def families(*names):
    """Parametrize a test by families of models (tiny_qwen3.STATE_LAYERS)."""
    return pytest.mark.parametrize("stateful", names, indirect=True)


one, each = families("qwen3-next"), families("qwen3-next", *SLOW)


@pytest.fixture(scope="module")
def stateful(request, tmp_path_factory, device):
    use_kernels()
    folder = tmp_path_factory.mktemp(request.param)
    tiny_qwen3.save_stateful(folder, request.param)
    tiny_qwen3.save_tokenizer(folder, WORDS)
    return folder


def engine(**settings):
    """Return an engine fixture. Prefix caching is off by default, because it takes the interpreter twice as long."""
    return started(start, "module", model="stateful", **{"enable_prefix_caching": False} | settings)


plain = engine()
sometimes = engine(sam=SEEDED, enable_prefix_caching=True)
"""Engine that drafts while at most 6 requests run."""
synchronous = engine(sam=SEEDED, k=7, async_scheduling=False)
with_mtp = engine(sam=SEEDED, k=2, drafter={"method": "mtp"})
tight = engine(sam=SEEDED, **TIGHT | {"block_size": 64, "max_num_batched_tokens": 128, "num_gpu_blocks_override": 14})


@pytest.fixture(scope="module")
def texts(plain, prompts):
    """Return prompts, and the lengths and answers of the engine without speculation."""
    lengths = [random.Random(i).randrange(12, 40) for i in range(8)]
    return prompts, lengths, plain.run(prompts, lengths, each=EACH)


def changed(engine):
    """Assert that drafts were accepted, and that a later step had no drafts."""
    speculated(engine)
    drafted, accepted = (COLUMNS.index(name) for name in ("drafted", "accepted"))
    first = next(i for i, row in enumerate(engine.rows) if row[accepted])
    assert any(not row[drafted] for row in engine.rows[first:])


def same_texts(engine, texts):
    """Assert that the texts equal those without speculation, call `changed`, and return the drafter's counters."""
    prompts, lengths, answers = texts
    assert engine.run(prompts, lengths, stagger=1, each=EACH) == answers
    changed(engine)
    return engine.drafter()


@right
@each
def test_text_is_that_without_speculation(sometimes, texts):
    assert not same_texts(sometimes, texts)["model_tokens"]


@pytest.mark.slow
@right
@one
def test_text_of_a_synchronous_engine_is_that_without_speculation(synchronous, texts):
    assert not same_texts(synchronous, texts)["model_tokens"]


@right
@one
def test_text_with_an_mtp_head_is_that_without_speculation(with_mtp, texts):
    assert same_texts(with_mtp, texts)["model_tokens"]
    assert with_mtp.engine.collective_rpc(takes_weights_from_verl) == [True]


def takes_weights_from_verl(worker):
    """Return whether verl 0.9.1 (workers/rollout/vllm_rollout/utils.py) finds the MTP head; runs in a worker."""
    return worker.model_runner.drafter.model is worker.model_runner.speculator.model


@pytest.fixture(scope="module")
def block(plain):
    """Return the tokens per block of the KV cache. A block of an attention layer has the size of a state."""
    return plain.engine.collective_rpc(lambda worker: worker.vllm_config.cache_config.block_size)[0]


@pytest.fixture(scope="module")
def long(block):
    """Return four prompts that end shortly before a block is full, so that their answers begin another block."""
    draw = random.Random(0)
    return [[draw.randrange(tiny_qwen3.VOCAB - 1) for _ in range(block - 4 - 2 * i)] for i in range(4)]


@pytest.mark.slow
@right
@each
def test_text_is_that_without_speculation_after_preemption(plain, tight, long):
    prompts = [prompt[24:] for prompt in long + long]
    assert tight.run(prompts, 48, priorities=[*range(8, 0, -1)]) == plain.run(prompts, 48)
    speculated(tight)
    assert tight.log.preemptions > 0


@pytest.mark.slow
@right
@each
def test_a_prefix_in_the_cache_and_a_block_that_ends_in_an_answer(plain, sometimes, long, block):
    more = [long[i] + long[i + 1] for i in range(3)]
    for prompts in (long, more, more):
        assert sometimes.run(prompts, 24, stagger=1) == plain.run(prompts, 24)
        speculated(sometimes)
    assert all(output.num_cached_tokens >= block for output in sometimes.outputs)


@right
@one
def test_a_session_is_refused_and_the_engine_goes_on(sometimes, texts):
    prompts, lengths, answers = texts
    with pytest.raises(ValueError, match="send each turn as a request with all tokens before it"):
        sometimes.run_session([prompts[0], prompts[1]], [4, 4])
    assert sometimes.run(prompts[:2], lengths[:2]) == answers[:2]


@right
@one
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


@right
@one
def test_vllms_code_for_a_cpu_is_refused(stateful, device, monkeypatch):
    from vllm.model_executor.layers.mamba.ops import causal_conv1d
    from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_update_cpu

    monkeypatch.setattr(causal_conv1d, "causal_conv1d_update", causal_conv1d_update_cpu)
    with pytest.raises(ValueError, match="on a CPU vLLM computes verified tokens of the model's state layers"):
        configure(stateful, {})


@pytest.mark.skipif(WRONG is None, reason="this vLLM reads the right states")
@one
def test_a_vllm_that_reads_wrong_states_is_refused(stateful, device):
    with pytest.raises(ValueError, match="install vLLM 0.32 or later"):
        configure(stateful, {})
