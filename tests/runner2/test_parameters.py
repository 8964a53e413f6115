# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters beside each other on the second runner: each answer is that of its request alone."""

import pytest
from engine_checks import speculated
from parameters import KINDS, NOT_WITH_DRAFTS, Alone

FEW = [*KINDS, *NOT_WITH_DRAFTS, "all"]


@pytest.fixture(scope="module")
def check():
    return Alone().check


@pytest.mark.parametrize("kind", FEW)
def test_answers_are_those_of_the_requests_alone(plain, synchronous, check, kind):
    check([plain, synchronous], plain, kind, seed=1, stagger=2, few=True, temperature=0.7)
    speculated(synchronous)


@pytest.mark.parametrize("kind", FEW)
def test_asynchronous_answers_are_those_of_the_requests_alone(plain, asynchronous, check, kind):
    check([asynchronous], plain, kind, seed=1, stagger=2, few=True, temperature=0.7)
    speculated(asynchronous)
