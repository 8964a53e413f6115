# SPDX-License-Identifier: Apache-2.0
"""With switch `auto`, each step verifies for each request only the draft tokens that pay, and no step waits."""

import itertools
import re

from engine_checks import settled, speculated
from sam_core.engines.vllm.pauses import LAG
from schedule_draws import EOS, WORDS
from test_same_text import SAMPLED
from vllm.sampling_params import StructuredOutputsParams


def lengths(worker):
    """Return how many draft tokens each request of each step verified since the last call; runs in a worker."""
    speculator = worker.model_runner.speculator
    if not hasattr(speculator, "noted"):
        speculator.noted, ended = [], speculator.pauses.ended

        def note(sampled):
            speculator.noted.append(sampled.verified)
            ended(sampled)

        speculator.pauses.ended = note
    noted, speculator.noted[:] = [*speculator.noted], []
    return noted


def plans(worker):
    """Return for each step without prompts since the last call whether drafting pauses, and the most tokens planned for
    a request. Drafting pauses 8 steps after the call. Runs in a worker."""
    speculator = worker.model_runner.speculator
    if not hasattr(speculator, "plans"):
        speculator.plans, launched = [], speculator.pauses.launched

        def note(batch):
            if not batch.has_prefill:
                speculator.plans.append((speculator.pauses.pause, int(batch.num_scheduled_tokens.max())))
            launched(batch)

        speculator.pauses.launched = note
    noted, speculator.plans[:] = [*speculator.plans], []
    speculator.pauses._next_plain = speculator.pauses._number + 8
    return noted


def test_text_is_that_of_plain_runner_2(plain, auto, prompts):
    config = auto.engine.vllm_config
    assert config.speculative_config.enable_adaptive_verification and config.scheduler_config.async_scheduling
    auto.engine.collective_rpc(lengths)
    preemptions = 0
    for each in (None, SAMPLED):
        expected = plain.run(prompts[:4], 60, each=each)
        assert auto.run(prompts[:4], 60, stagger=3, each=each) == expected
        speculated(auto)
        preemptions += auto.log.preemptions
        (noted,) = auto.engine.collective_rpc(lengths)
        verified, planned = sum(map(sum, noted)), 5 * auto.count("running")
        assert auto.count("drafted") <= verified < 0.8 * planned  # steps after an answer's end do not count
        assert len({length for step in noted for length in step}) > 2, "all drafts were equally long"
        own = [output.outputs[0].spec_decode_metrics for output in auto.outputs]
        assert sum(each.num_draft_tokens for each in own) == auto.count("drafted")
        assert sum(sum(each.per_step_accepted) for each in own) == auto.count("accepted")
        assert all(sum(each.per_step_drafted) == each.num_draft_tokens for each in own)
        assert all(0 not in each.per_step_drafted for each in own)
    assert preemptions > 0
    counters = settled(auto)
    assert 0 < counters["steps_on"] < counters["steps"], "it never paused to see what a plain step takes"


def test_grammars(plain, auto, prompts):
    """Tokens that a grammar does not allow are neither sampled nor accepted from a draft."""
    each = [
        {"structured_outputs": StructuredOutputsParams(regex=regex), **more}
        for regex, more in zip(["[a-f]{40}", "(ba|de|f){5,30}"], SAMPLED, strict=False)
    ]
    expected = plain.run(prompts[:4], 40, each=[*each, {}, SAMPLED[2]])
    said = ["".join(WORDS[t] for t in itertools.takewhile(lambda t: t != EOS, answer)) for answer in expected]
    assert re.fullmatch("[a-f]{40}", said[0]) and re.fullmatch("(ba|de|f){5,30}[bd]?", said[1])
    assert auto.run(prompts[:4], 40, stagger=3, each=[*each, {}, SAMPLED[2]]) == expected
    speculated(auto)


def test_planned_drafts_leave_room_for_all_requests(plain, auto, prompts):
    """8 requests with drafts of 5 tokens need 48 tokens, but a step has at most 40."""
    short = [prompt[:5] for prompt in prompts]
    auto.engine.collective_rpc(lengths)
    assert auto.run(short, 20) == plain.run(short, 20)
    speculated(auto)
    (noted,) = auto.engine.collective_rpc(lengths)
    full, planned = [i for i, step in enumerate(noted) if len(step) == 8], max(map(max, noted))
    assert len(full) > 4 and not any(len(step) == 7 for step in noted[full[0] : full[-1]]), noted
    assert planned > 1


def test_nothing_is_planned_while_drafting_pauses(plain, auto, prompts):
    """From LAG steps after a pause begins, when the scheduler knows of it, each request has one token per step."""
    auto.engine.collective_rpc(plans)
    assert auto.run(prompts[:4], 60) == plain.run(prompts[:4], 60)
    speculated(auto)
    (noted,) = auto.engine.collective_rpc(plans)
    in_pauses = [noted[i][1] for i in range(LAG, len(noted)) if all(pauses for pauses, _ in noted[i - LAG : i + 1])]
    assert in_pauses and set(in_pauses) == {1}, noted
    assert max(planned for _, planned in noted) > 1
