# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters beside each other in batches whose rows move: each answer is that of its request alone.

As tests/engine/test_parameters.py, on vllm-ascend's runner. With 0.11 requests whose parameters change logits are not drafted.
"""

import pytest
from ascend_engine import OLD
from conftest import LONG_END
from engine_checks import speculated
from parameters import KINDS, NOT_WITH_DRAFTS, SCHEDULES, budgets_held, requests

NOT_IN_0_11 = ("logprob_token_ids", "thinking_token_budget")
FEW = {kind: make for kind, make in KINDS.items() if kind != "repetition_detection"}  # which JSON does not hold
if OLD:
    FEW = {kind: make for kind, make in (FEW | NOT_WITH_DRAFTS).items() if kind not in NOT_IN_0_11}


@pytest.fixture(scope="module")
def check():
    """check(engines, reference, kind, seed, stagger, **common): each engine answers as the reference does requests alone."""
    known = {}

    def check(engines, reference, kind, seed, stagger, end=(61,), **common):
        prompts, lengths, each = requests(kind, seed, FEW, flat=not OLD, **common)
        key = id(reference), kind, seed
        if key not in known:
            known[key] = []
            for prompt, length, settings in zip(prompts, lengths, each, strict=True):
                known[key].append((*reference.run([prompt], length, each=[settings]), *reference.logprobs))
        answers, logprobs = zip(*known[key], strict=True)
        assert budgets_held(answers, each, end) > 1 or kind != "thinking_token_budget"
        for engine in engines:
            assert engine.run(prompts, lengths, each=each, stagger=stagger) == list(answers)
            for ours, theirs in zip(engine.logprobs, logprobs, strict=True):
                assert (ours is None) == (theirs is None)
                for mine, expected in zip(ours or (), theirs or (), strict=True):
                    assert dict(map(tuple, mine)) == pytest.approx(dict(map(tuple, expected)), abs=1e-4)

    return check


@pytest.mark.parametrize("kind", [*FEW, "all"])
def test_answers_are_those_of_the_requests_alone(cpu, plain, sam, check, kind):
    for seed, stagger in SCHEDULES:
        check([plain, sam], cpu, kind, seed, stagger)
        speculated(sam)


@pytest.mark.skipif(OLD, reason="0.11 has no graphs of decoding with drafts")
@pytest.mark.parametrize("kind", [*FEW, "all"])
def test_sampled_answers_are_those_of_the_requests_alone(without, graphs, check, kind):
    for seed, stagger in SCHEDULES:
        check([graphs], without, kind, seed, stagger, LONG_END, temperature=0.7)
        speculated(graphs)
