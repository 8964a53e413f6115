# SPDX-License-Identifier: Apache-2.0
"""Tests of drafts that the device completes, in steps that wait for nothing. The texts do not change, and the index
holds the answers."""

import random
import time

import adapter
import numpy as np
import pytest
from conftest import AUTO, SEEDED, appended, note_answers, noted_answers, pause_at_random, start
from engine_checks import go_on_from_what_they_had, settled, speculated
from sam_core.counters import REPORT_INTERVAL_S
from test_same_text import SAMPLED
from tiny_qwen3 import VOCAB


def test_while_off_answers_are_indexed_that_are_short_or_were_sampled_again():
    """While drafting is off, texts are read once in 32 steps. A preempted request may lose tokens that were read."""
    from sam_core.engines.vllm.runner2 import ChainProposer

    proposer = ChainProposer(3, {"sources": ["group", "history"]}, 2, vocab_size=VOCAB)
    prompt, dropped, answer = [1, 2, 3, 4], [10, 11, 12, 13], [10, 11, 20, 21, 22]
    rows = np.zeros((1, 64), np.int32)

    def chains(req_id, tokens, should_draft):
        rows[0, :4], rows[0, 4 : 4 + len(tokens)] = prompt, tokens
        ends, prompts = np.array([4 + len(tokens)], np.int32), np.array([4], np.int32)
        proposer.begin([req_id], rows, ends, prompts, should_draft)
        return proposer.chains()

    chains("again", dropped, True)
    chains("again", answer[:2], False)
    chains("short", answer[:3], False)
    for req_id in ("again", "short"):
        proposer.texts.complete(req_id, len(prompt), answer)
    proposer.texts.finish(["again", "short"])
    assert proposer.texts.pool.stats()["appended"] == len(dropped) + 2 * len(answer)
    drafted, *_ = chains("sibling", answer[:2], True)
    assert drafted[0, :3].tolist() == answer[2:]


def test_text_is_that_of_plain_runner_2(plain, asynchronous, prompts):
    config = asynchronous.engine.vllm_config
    assert config.use_v2_model_runner and config.scheduler_config.async_scheduling
    assert asynchronous.run(prompts[:6], 40, stagger=3) == plain.run(prompts[:6], 40)
    speculated(asynchronous)
    assert asynchronous.run(prompts[:4], 40, each=SAMPLED) == plain.run(prompts[:4], 40, each=SAMPLED)
    speculated(asynchronous)


def cut_at_stop(answer, stop_token_ids=()):
    """Return an answer up to and including its first stop token."""
    return answer[: min(map(answer.index, stop_token_ids), default=len(answer)) + 1]


def test_texts_and_indexes_of_random_schedules(plain, auto, model, trained):
    """The schedules have arrivals, priorities, preemptions, chunked prompts, reused rows, and ends by length and by
    stop tokens, also inside a draft. One run has a reset of the cache, one has sleep and new weights. Drafting
    pauses in a random half of the steps."""
    rng, preemptions = random.Random(0), 0
    note_answers(auto)
    auto.engine.collective_rpc(pause_at_random)
    for interrupt in (None, reset_cache, renew(trained)):
        prompts = [[rng.randrange(VOCAB - 1) for _ in range(rng.randrange(4, 70))] for _ in range(5)] * 2
        lengths = [rng.randrange(1, 70) for _ in prompts]
        answers = plain.run(prompts, lengths)
        stops = [{"stop_token_ids": [rng.choice(answer)]} if rng.random() < 0.4 else {} for answer in answers]
        expected = [cut_at_stop(answer, **stop) for answer, stop in zip(answers, stops, strict=True)]
        before, stagger, after = appended(auto), rng.randrange(4), rng.randrange(4, 30)
        how = {"interrupt": interrupt, "after": after, "priorities": [rng.randrange(3) for _ in prompts]}
        answers = auto.run(prompts, lengths, stagger, each=stops, **how)
        speculated(auto)
        preemptions += auto.log.preemptions
        settled(auto)
        assert noted_answers(auto) == sorted(answers)
        if interrupt in (None, reset_cache):
            assert answers == expected
        else:
            renew(trained)(plain.engine)
            go_on_from_what_they_had(plain, prompts, answers, expected, lengths, stops)
        if interrupt is None:
            assert appended(auto) - before == sum(map(len, expected))
    assert preemptions > 0
    auto.engine.collective_rpc(pause_at_random, kwargs={"seed": None})
    for each in (plain, auto):
        renew(model)(each.engine)


def test_abort_and_the_end_of_the_context(plain, asynchronous, prompts):
    kept, answers = plain.run(prompts[:5], 40), asynchronous.run(prompts[:5], 40, abort={1, 3})
    assert all(answer == kept[i][: len(answer)] for i, answer in enumerate(answers))
    assert all((len(answer) < 40) == (i in (1, 3)) for i, answer in enumerate(answers))
    rng = random.Random(2)
    long = [[rng.randrange(VOCAB - 1) for _ in range(n)] for n in (230, 250, 254)]
    assert asynchronous.run(long, 60) == plain.run(long, 60)
    speculated(asynchronous)
    settled(asynchronous)


def test_texts_go_on_behind_a_reset_of_the_cache(plain, asynchronous, prompts):
    """All requests are preempted at once. Tokens of steps in flight are dropped and sampled again."""
    for each in (None, SAMPLED):
        expected = plain.run(prompts[:4], 40, each=each)
        note_answers(asynchronous)
        assert asynchronous.run(prompts[:4], 40, each=each, interrupt=reset_cache) == expected
        assert asynchronous.log.preemptions >= 3
        speculated(asynchronous)
        settled(asynchronous)
        assert noted_answers(asynchronous) == sorted(expected)


def reset_cache(engine):
    assert engine.reset_prefix_cache(reset_running_requests=True)


def renew(weights):
    """Return a function that puts an engine to sleep, loads new weights and wakes it. On a CPU, unlike on a
    GPU, it keeps its memory."""

    def sleep_and_wake(engine):
        engine.sleep(level=2, mode="keep")
        assert engine.is_sleeping()
        engine.collective_rpc("reload_weights", kwargs={"weights_path": str(weights)})
        engine.wake_up()
        assert not engine.is_sleeping()

    return sleep_and_wake


@pytest.mark.slow
def test_adapters(model, device, plain, prompts, tmp_path):
    """Requests with and without a LoRA adapter share prompts, and therefore drafts. The adapter also changes logits, of
    which a draft has several rows. Eight requests at once are not drafted, and give the expected texts."""
    adapters, each = [adapter.save(tmp_path, VOCAB), None] * 2, [{}, {}, *SAMPLED[:2]]
    asked = [prompts[0], prompts[0], prompts[1], prompts[1]]
    engine = start(model, sam=SEEDED, **adapter.SETTINGS)
    expected = engine.run(2 * asked, 40, each=2 * each, adapters=2 * adapters)[:4]
    assert engine.count("drafted") == 0
    assert expected[1::2] == plain.run(asked[1::2], 40, each=each[1::2]) and expected[0] != expected[1]
    assert engine.run(asked, 40, stagger=3, each=each, adapters=adapters) == expected
    speculated(engine)
    engine.stop()


@pytest.mark.parametrize("name", ["synchronous", "asynchronous"])
def test_no_drafts_above_the_threshold(plain, name, prompts, request):
    """Answers are indexed even while nothing is drafted."""
    engine = request.getfixturevalue(name)
    short, lengths = [prompt[:5] for prompt in prompts], [6, 8, 10, 12, 14, 16, 18, 20]
    expected = plain.run(short, lengths)
    before = appended(engine)
    assert engine.run(short, lengths) == expected
    rows = engine.rows
    assert max(row[2] for row in rows) == 8
    assert all(after[4] == 0 for before, after in zip(rows, rows[1:], strict=False) if before[2] > 6)
    assert any(row[4] > 0 for row in rows)
    settled(engine)
    assert appended(engine) - before == sum(lengths)


def test_counters_are_those_of_the_engine(asynchronous, prompts):
    """The drafter's counter of proposed tokens equals the number of draft tokens that the engine counts."""
    before = asynchronous.drafter()
    asynchronous.run(prompts[:3], 40)
    after = settled(asynchronous)
    assert after["proposed"] - before["proposed"] == asynchronous.count("drafted") > 0
    positions = [key for key in after if key.startswith("tokens_from_")]
    gained = sum(after[key] - before[key] for key in positions)
    steps = sum(after[key] - before[key] for key in after if key.startswith("steps_from_"))
    assert 0 < gained - steps <= asynchronous.count("accepted")


def test_prometheus_has_the_drafters_counters(asynchronous, prompts):
    for _ in range(2):
        asynchronous.run(prompts[:1], 20)
        time.sleep(REPORT_INTERVAL_S)
    before = asynchronous.drafter()["steps"]
    asynchronous.run(prompts[:1], 20)
    (metrics,) = [
        m for log in asynchronous.engine.logger_manager.stat_loggers if (m := getattr(log, "sam_metrics", None))
    ]
    steps = metrics.collectors[0].collect()[0].samples[0]
    assert steps.name == "vllm:sam_engine_steps_total"
    assert 0 < before <= steps.value <= asynchronous.drafter()["steps"]


def test_two_ranks_have_the_same_drafts_and_confidences(model, device, plain, prompts):
    engine = start(model, AUTO, tensor_parallel_size=2)
    assert engine.engine.vllm_config.scheduler_config.async_scheduling
    assert engine.run(prompts[:3], 24) == plain.run(prompts[:3], 24)
    speculated(engine)
    engine.stop()
