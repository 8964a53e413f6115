# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters beside each other in batches whose rows move: each answer is that of its request alone.

Steps with drafts and, above the switch's threshold, without; arrivals, ends, and in the tight engine preemption.
"""

import pytest
from conftest import LONG_END
from engine_checks import speculated
from parameters import ENDS, KINDS, SCHEDULES, Alone


@pytest.fixture(scope="module")
def check():
    return Alone().check


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_answers_are_those_of_the_requests_alone(plain, sam, check, kind):
    for seed, stagger in SCHEDULES:
        check([plain, sam], plain, kind, seed, stagger)
        speculated(sam)


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_sampled_answers_are_those_of_the_requests_alone(without, tight, check, kind):
    preemptions = 0
    for seed, stagger in SCHEDULES:
        check([tight], without, kind, seed, stagger, LONG_END, temperature=0.7)
        speculated(tight)
        preemptions += tight.log.preemptions
    assert preemptions > 0 or kind in ENDS, "nothing was preempted: the test shows nothing"


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_asynchronous_answers_are_those_of_the_requests_alone(plain, asynchronous, check, kind):
    for seed, stagger in SCHEDULES:
        check([asynchronous], plain, kind, seed, stagger)
        speculated(asynchronous)
