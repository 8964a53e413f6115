# SPDX-License-Identifier: Apache-2.0
"""Speculation does not change the text of a model whose layers keep a state for each request (gated delta nets)."""

import ctypes
import functools
import random
import types

import asynchronous_cpu
import pytest
import tiny_qwen3
from cpu_engine import Engine
from engine_checks import speculated
from gated_delta_net import compute_on_cpu
from llm_engine import COLUMNS
from sam_core.engines.vllm import config
from sam_core.engines.vllm.config import check_layers
from started import started
from test_options import configure

SEEDED = {"verify": "seeded", "threshold": 6}
"""Options of sam: verification is seeded, and drafting stops above 6 running requests."""
KINDS = [pytest.param("synchronous", marks=pytest.mark.slow), "asynchronous"]
SAMPLED = [{"temperature": 1.0, "seed": seed} for seed in range(24)]


def start(model, sam=None, k=7, **settings):
    sizes = {"max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    return Engine(model, sam, k, **{"async_scheduling": False, **sizes, **settings})


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3-next")
    tiny_qwen3.save_stateful(folder, "qwen3-next")
    compute_on_cpu()
    with pytest.MonkeyPatch.context() as patch:
        asynchronous_cpu.allow(functools.partial(patch.setattr, raising=False))
        copy_states_on_cpu(patch.setattr)
        patch.setattr(config, "check_layers", lambda model: None)  # would refuse vLLM's own code for CPUs
        yield folder


def copy_states_on_cpu(put):
    """Replace the Triton kernels by which vLLM, with prefix caching, copies states between blocks and to where the next
    prompt finds them."""
    from vllm.v1.worker import mamba_utils

    def batch_memcpy(*columns):
        for source, target, size in zip(*(column.tolist() for column in columns), strict=True):
            ctypes.memmove(target, source, size)

    def postprocess(*, bufs, num_reqs, num_accepted_tokens_gpu, num_accepted_tokens_cpu_tensor, input_batch, **context):
        copies, staged = bufs.preprocess, bufs.postprocess_align
        groups, size = copies.mamba_group_ids, staged.block_size
        accepted, copies.offset = num_accepted_tokens_gpu[:num_reqs].clone(), 0
        begun = staged.num_computed_tokens_buf.np + staged.num_scheduled_tokens_buf.np - staged.num_draft_tokens_buf.np
        for i in range(num_reqs):
            end = int(begun[i] + accepted[i] - 1) // size * size  # end of the last full block
            if end < begun[i]:
                continue
            source, target = staged.mamba_state_idx_buf.np[i], end // size - 1
            request = types.SimpleNamespace(
                block_ids={group: input_batch.block_table[group].get_numpy_array()[i] for group in groups}
            )
            mamba_utils.collect_mamba_copy_meta(
                copies,
                mamba_group_ids=groups,
                src_block_idx=source,
                dest_block_idx=target,
                accept_token_bias=end - begun[i],
                req_state=request,
                **context,
            )
            if source == target:
                accepted[i] = 1
        mamba_utils.do_mamba_copy_block(copies)
        num_accepted_tokens_cpu_tensor[:num_reqs] = accepted

    put(mamba_utils, "batch_memcpy", batch_memcpy)
    put(mamba_utils, "postprocess_mamba_align_gpu", postprocess)


plain = started(start, "module", model="stateful", additional_config={"sam_verify": "seeded"})
# Each of eight requests needs k + 1 blocks for states and two for tokens: together one block more than there are.
synchronous = started(start, "module", model="stateful", sam=SEEDED, k=3, num_gpu_blocks_override=8 * 6 - 1)
asynchronous = started(
    start, "module", model="stateful", sam=SEEDED, async_scheduling=True, num_gpu_blocks_override=8 * 10 - 1
)


@pytest.fixture(scope="module")
def crowded(stateful):
    """Yield an engine with few tokens per step, so that prompts are read in parts, drafts are cut, and some steps leave
    out running requests."""
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule, draw = Scheduler.schedule, random.Random(0)

    def schedule_some(self):
        self.max_num_scheduled_tokens = draw.choice([2, 8, 24, 48])
        return schedule(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "schedule", schedule_some)
        engine = start(stateful, SEEDED | {"threshold": 3}, max_num_batched_tokens=48, async_scheduling=True)
    yield engine
    engine.stop()


cached = started(start, "module", model="stateful", sam=SEEDED, enable_prefix_caching=True, async_scheduling=True)


@pytest.fixture(scope="module")
def texts(plain):
    """Return prompts, and the lengths, greedy answers and seeded answers of the engine without speculation."""
    prompts, lengths = tiny_qwen3.repeated_prompts(12), [random.Random(i).randrange(4, 40) for i in range(24)]
    greedy, sampled = plain.run(prompts, lengths), plain.run(prompts, lengths, each=SAMPLED)
    assert plain.run(prompts, lengths, stagger=3) == greedy, "the engine itself gives another text in another batch"
    assert plain.run(prompts, lengths, stagger=3, each=SAMPLED) == sampled != greedy
    return prompts, lengths, greedy, sampled


def paused(engine):
    """Return whether any step after the first accepted draft had no drafts."""
    speculated(engine)
    drafted, accepted = (COLUMNS.index(name) for name in ("drafted", "accepted"))
    first = next(i for i, row in enumerate(engine.rows) if row[accepted])
    return any(not row[drafted] for row in engine.rows[first:])


@pytest.mark.parametrize("name", KINDS)
def test_text_is_that_without_speculation(name, texts, request):
    check(request.getfixturevalue(name), texts, (3, 0))


def test_text_is_that_without_speculation_where_steps_leave_out_requests(crowded, texts):
    check(crowded, texts, (3, 1, 0))


def check(engine, texts, staggers):
    prompts, lengths, greedy, sampled = texts
    pauses = []
    for stagger in staggers:
        assert engine.run(prompts, lengths, stagger=stagger) == greedy
        pauses.append(paused(engine))
        assert engine.run(prompts, lengths, stagger=stagger, each=SAMPLED) == sampled
        pauses.append(paused(engine))
    assert any(pauses)


@pytest.fixture(scope="module")
def long():
    """Return four prompts that end shortly before a block is full, so that their answers begin another block."""
    draw = random.Random(0)
    return [[draw.randrange(tiny_qwen3.VOCAB - 1) for _ in range(124 - 2 * i)] for i in range(4)]


@pytest.mark.parametrize("name", KINDS)
def test_text_is_that_without_speculation_after_preemption(plain, long, name, request):
    engine = request.getfixturevalue(name)
    assert engine.run(long + long, 24) == plain.run(long + long, 24)
    speculated(engine)
    assert engine.log.preemptions > 0


def test_a_prefix_in_the_cache_and_a_block_that_ends_in_an_answer(plain, long, cached):
    assert cached.engine.vllm_config.cache_config.mamba_cache_mode == "align"
    more = [long[i] + long[i + 1] for i in range(3)]
    for prompts in (long, more, more):
        assert cached.run(prompts, 24, stagger=1) == plain.run(prompts, 24)
        speculated(cached)
    assert all(output.num_cached_tokens >= 128 for output in cached.outputs)


def note_uniform(worker):
    """Note for each later step its tokens, its requests, and whether a decoding graph may run it; runs in a worker."""
    runner, worker.noted = worker.model_runner, []
    is_uniform = runner._is_uniform_decode

    def noting(**step):
        worker.noted.append((step["num_tokens"], step["num_reqs"], is_uniform(**step)))
        return worker.noted[-1][-1]

    runner._is_uniform_decode = noting


def test_graphs_of_decoding_hold_no_parts_of_prompts(synchronous, texts):
    prompts, lengths, greedy, _ = texts
    synchronous.engine.collective_rpc(note_uniform)
    synchronous.run([prompts[0][:4], prompts[1][:4]], 4)  # 4 tokens each, as a request with 3 drafts
    (short,) = synchronous.engine.collective_rpc(lambda worker: worker.noted)
    assert short[0] == (8, 2, False)
    for _ in range(2):  # the second answer has full drafts, from the first
        assert synchronous.run(prompts[:1], lengths[:1]) == greedy[:1]
    (noted,) = synchronous.engine.collective_rpc(lambda worker: worker.noted)
    assert (4, 1, True) in noted


def test_a_session_is_refused_and_the_engine_goes_on(synchronous, texts):
    prompts, lengths, greedy, _ = texts
    with pytest.raises(ValueError, match="send each turn as a request with all tokens before it"):
        synchronous.run_session([prompts[0], prompts[1]], [4, 4])
    assert synchronous.run(prompts[:2], lengths[:2]) == greedy[:2]


def test_defaults(stateful, monkeypatch):
    said = []
    monkeypatch.setattr(config.LOGGER, "warning", lambda text, *parts: said.append(text % parts))
    for k, expected in ((None, 3), (7, 7), (8, 8)):
        chosen = {"method": "sam"} | ({} if k is None else {"num_speculative_tokens": k})
        assert configure(stateful, chosen).speculative_config.num_speculative_tokens == expected
        assert any(text.startswith("num_speculative_tokens is 8") for text in said) == (k == 8)


def test_what_computes_no_drafts_is_refused(stateful, model, monkeypatch):
    with pytest.raises(ValueError, match="on a CPU vLLM verifies no drafts in them"):
        check_layers(configure(stateful, None).model_config)
    monkeypatch.setattr("vllm.config.ModelConfig.is_hybrid", True)
    monkeypatch.setattr(config, "check_layers", check_layers)
    with pytest.raises(ValueError, match="the patches work with gated delta nets only"):
        configure(model, {"method": "sam"})
