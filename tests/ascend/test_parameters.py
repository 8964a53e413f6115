# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters beside each other in batches whose rows move: each answer is that of its request alone.

With vLLM 0.11, where requests whose parameters change logits are not drafted; for 0.23 see test_schedules.py.
"""

import pytest
from ascend_engine import OLD
from engine_checks import speculated
from parameters import KINDS, NOT_WITH_DRAFTS, requests

pytestmark = pytest.mark.skipif(not OLD, reason="test_schedules.py holds it")
NOT_IN_0_11 = {"logprob_token_ids", "thinking_token_budget", "repetition_detection"}
MADE = {kind: make for kind, make in (KINDS | NOT_WITH_DRAFTS).items() if kind not in NOT_IN_0_11}


@pytest.mark.parametrize("kind", [*MADE, "all"])
def test_answers_are_those_of_the_requests_alone(cpu, plain, sam, kind):
    prompts, lengths, each = requests(kind, 2, MADE, flat=False)
    alone = []
    for prompt, length, settings in zip(prompts, lengths, each, strict=True):
        alone.append((*cpu.run([prompt], length, each=[settings]), *cpu.logprobs))
    answers, logprobs = zip(*alone, strict=True)
    for engine in (plain, sam):
        assert engine.run(prompts, lengths, each=each, stagger=3) == list(answers)
        for ours, theirs in zip(engine.logprobs, logprobs, strict=True):
            assert (ours is None) == (theirs is None)
            for mine, expected in zip(ours or (), theirs or (), strict=True):
                assert dict(map(tuple, mine)) == pytest.approx(dict(map(tuple, expected)), abs=1e-4)
    speculated(sam)
