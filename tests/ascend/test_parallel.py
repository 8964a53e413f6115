# SPDX-License-Identifier: Apache-2.0
"""Tests of two tensor-parallel ranks over gloo. Both give the same tokens. Only the first rank keeps an index; it
times steps and decides on the drafts."""

import pytest
from ascend_engine import OLD, Engine
from engine_checks import speculated


@pytest.fixture(scope="module")
def pair(model, tmp_path_factory):
    sam = {"switch": "auto", "history": str(tmp_path_factory.mktemp("history"))}
    engine = Engine(model, sam=sam, tensor_parallel_size=2)
    yield engine
    engine.stop()


def test_two_ranks_give_the_same_tokens_and_only_the_first_keeps_an_index(cpu, pair, prompts):
    lengths = [30 + 5 * i for i in range(10)]
    assert pair.run(prompts[:10], lengths, stagger=2) == cpu.run(prompts[:10], lengths)
    speculated(pair)
    first, second = pair.ask("pools")
    assert first["appended"] >= sum(lengths) and first["drafts"] > 0
    assert second["appended"] == second["groups"] == second["tokens"] == 0
    if not OLD:
        assert pair.ask("scheduling") == [[False, True]] * 2  # asynchronous scheduling
    seed, same = pair.ask("random_seed")
    assert seed == same != 0, "what it saves would be verified by the random numbers that it was sampled with"
    calls = pair.ask("calls")
    assert calls[0] == calls[1] and calls[0]["npu_fused_infer_attention_score"] > 0


@pytest.mark.skipif(OLD, reason="vLLM 0.11 schedules with drafts synchronously")
def test_every_rank_waits_for_the_tokens_that_it_reads(pair, prompts):
    """The scheduler fetches only the first rank's tokens, so the second rank must wait for its own tokens itself."""
    lengths = [30 + 5 * i for i in range(10)]
    pair.ask("never_pays")
    pair.ask("note_outputs")
    pair.ask("note_plans")
    drafted = pair.pool()["drafted_tokens"]
    answers = pair.run(prompts[:10], lengths)
    planned = [placeholders for _, placeholders in pair.ask("noted_plans")[0]]
    assert len(planned) > 70 and not any(planned[16:]), (
        "steps were planned with placeholders for drafts that do not pay"
    )
    assert pair.pool()["drafted_tokens"] > drafted, "it looked for no drafts"
    for noted in pair.ask("noted_outputs"):
        read = [[token for token in output if token >= 0] for output in noted]
        assert len(read) == len(answers) and all(len(output) > 25 for output in read)
        assert all(any(answer[: len(output)] == output for answer in answers) for output in read)
