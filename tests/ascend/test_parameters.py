# SPDX-License-Identifier: Apache-2.0
"""Requests with different sampling parameters share batches whose rows move; each is answered as if it ran alone.

vLLM 0.11 does not draft for requests whose parameters change logits. For 0.23 see test_schedules.py.
"""

import pytest
from ascend_engine import OLD
from engine_checks import speculated
from parameters import KINDS, requests, same_log_probabilities

FAST = ("allowed_token_ids", "logprobs", "all")
FEW = [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in (*KINDS, "all")]
pytestmark = pytest.mark.skipif(not OLD, reason="test_schedules.py holds it")


def log_probabilities(engine):
    """Return the log-probabilities of each answer, in the form that same_log_probabilities compares."""
    return [answer and [dict(map(tuple, position)) for position in answer] for answer in engine.logprobs]


@pytest.mark.parametrize("kind", FEW)
def test_answers_are_those_of_the_requests_alone(cpu, plain, sam, kind):
    prompts, lengths, each = requests(kind, KINDS, num=14, longest=70, temperature=0.0)
    alone = []
    for prompt, length, settings in zip(prompts, lengths, each, strict=True):
        alone.append((*cpu.run([prompt], length, each=[settings]), *log_probabilities(cpu)))
    answers, expected = zip(*alone, strict=True)
    for engine in (plain, sam):
        assert engine.run(prompts, lengths, each=each, stagger=3) == list(answers)
        same_log_probabilities(log_probabilities(engine), expected)
    speculated(sam)
