# SPDX-License-Identifier: Apache-2.0
"""The rules of vLLM's suffix decoding on the second runner, by hand."""

import numpy as np
import pytest

from sam_lab.cost import Cost
from sam_lab.evidence.arms import make
from sam_lab.evidence.devices import Device
from sam_lab.evidence.rollout import column, roll_out
from sam_lab.recordings import Answer
from sam_lab.suffix_device import (
    CAPACITY,
    HALF_LIFE,
    AcceptedByClass,
    SuffixDevice,
    SuffixDraft,
)


def text_of(*tokens):
    return np.array(tokens, np.int32)


def draft(text, k, *ended, depth=24, capacity=CAPACITY):
    """Return the draft for `text` after the answers `ended` have joined the corpus."""
    method = SuffixDevice(depth, capacity)
    for answer in ended:
        method.end(text_of(*answer), 0)
    return tuple(method.draft([text_of(*text)], k)[0])


def test_of_its_own_text_the_longest_match_counts_then_the_latest():
    assert draft([1, 2, 3, 9, 7, 3, 8, 1, 2, 3], 2) == ([9, 7], 3, False)
    assert draft([1, 2, 3, 9, 7, 3, 8, 1, 2, 3], 2, depth=1) == ([8, 1], 1, False)
    assert draft([1, 2, 3, 9, 1, 2, 3, 8, 5, 2, 3], 2) == ([8, 5], 2, False)
    assert draft([4, 5, 5], 4) == ([5], 1, False), "a draft ends where the text does"
    assert draft([1, 2, 3], 2) == draft([1], 2) == ([], 0, False)


def test_the_corpus_drafts_where_its_match_is_longer():
    ended = [1, 2, 3, 4, 70, 71]
    assert draft([4, 99, 1, 2, 3, 4], 3, ended) == ([70, 71], 4, True)
    assert draft([4, 99, 2, 3, 4], 3, ended) == ([70, 71], 3, True), "a key of two tokens is enough"
    assert draft([4, 99, 8, 4], 3, ended) == ([99, 8, 4], 1, False)
    assert draft([8, 4], 3, ended) == ([], 0, False), "a key of one token is not"
    assert draft([3, 4, 99, 8, 3, 4], 2, ended) == ([99, 8], 2, False), "its own text of equals"


def test_occurrences_vote_token_by_token():
    three = [5, 6, 30, 31], [5, 6, 30, 32], [5, 6, 40, 41]
    assert draft([5, 6], 2, *three) == ([30, 32], 2, True), "30 has two votes; of 31 and 32 the latest wins"
    agreeing = [[9, 9, 3, 4, 30, 31]] * 3
    ended = [[1, 2, 3, 4, 70], *agreeing]
    assert draft([1, 2, 3, 4], 2, *ended) == ([30, 31], 2, True), "3/4 + 3/4 against 1 of the longer match"
    assert draft([1, 2, 3, 4], 1, *ended) == ([70], 4, True), "1 against 3/4"
    few = [[1, 2, 3, 4, 70], [9, 3, 4, 40], [9, 3, 4, 50], *agreeing[:2]]
    assert draft([1, 2, 3, 4], 2, *few) == ([70], 4, True), "1 against 2/5 + 2/5, though 30 is always followed by 31"
    assert draft([3, 4, 77, 1, 2, 3, 4], 2, *ended) == ([77, 1], 2, False), "the chosen match is no longer than its own"


def test_a_bucket_keeps_the_latest_eight_answers():
    ended = [[1, 2, 50]] * 5 + [[1, 2, 60]] * 4
    assert draft([1, 2], 1, *ended) == ([60], 2, True), "4 to 4, of equals the latest"
    assert draft([1, 2], 1, *ended[1:8]) == ([50], 2, True), "4 to 3"
    assert draft([1, 2], 2, [1, 2, 50, 1, 2, 60, 61]) == ([60, 61], 2, True), "of an answer the latest occurrence"


def test_the_oldest_answers_are_overwritten():
    ended = [[number, *range(10 * number, 10 * number + 5)] for number in (1, 2, 3)]  # two of seven fit into 16
    assert [draft([10 * n, 10 * n + 1], 1, *ended, capacity=16)[0] for n in (1, 2, 3)] == [[], [22], [32]]
    assert draft([5, 6], 2, range(30), capacity=16)[0] == [], "of a longer one the last 15 tokens stay"
    assert draft([27, 28], 2, range(30), capacity=16)[0] == [29]
    assert draft([101, 102], 5, range(15), [100, 101, 102, 103], capacity=16)[0] == [103], "it ends before the rest"
    for last in range(2, 12):  # the old place now has a match of one token
        ended = [*range(50, 50 + last), last, 99]
        assert draft([last - 1, last], 1, range(15), ended, capacity=16)[0] == []


def test_the_end_of_a_prompt_is_kept():
    method = SuffixDevice()
    method.end(text_of(1, 2, 90, 91, 92, 7, 8, 9), 5)
    drafts = method.draft([text_of(60, 61, 90, 91, 92), text_of(1, 2)], 3)
    assert [each.tokens for each in drafts] == [[7, 8, 9], []]


def test_acceptance_is_by_source_length_and_place():
    acceptance = AcceptedByClass(3)
    seven = SuffixDraft([1, 2, 3], 7, True)
    acceptance.add(seven, 3, 1)
    acceptance.add(SuffixDraft([1, 2, 3], 10, True), 2, 2)  # of one class with 7 tokens; the third was not verified
    assert acceptance.probabilities(seven) == pytest.approx([3 / 4, 2 / 4, 1 / 2])
    for other in (SuffixDraft([1, 2], 6, True), SuffixDraft([1, 2], 11, True), SuffixDraft([1, 2], 7, False)):
        assert acceptance.probabilities(other).tolist() == [0.5, 0.5]
    for _ in range(HALF_LIFE - 1):
        acceptance.step()
    assert acceptance.probabilities(seven) == pytest.approx([3 / 4, 2 / 4, 1 / 2])
    acceptance.step()
    assert acceptance.probabilities(seven) == pytest.approx([2 / 3, 1 / 3, 1 / 2])  # 1 of 1, 0 of 1, none


@pytest.mark.parametrize(("a_row", "drafted"), [(0.0, 3), (0.25, 1), (1.0, 0)])
def test_the_budget_gains_most_tokens_a_second(a_row, drafted):
    """0 to 3 unknown draft tokens yield 1, 1.5, 1.75, 1.875 tokens; a step takes 1 s and `a_row` s per draft token."""
    device = Device("own", "", Cost(np.array([1.0, 1001.0]), np.array([1.0, 1 + 1000 * a_row]), 0.0, 0.0))
    answer = Answer([7, 8], [1, 2, 3, 4, 1, 2, 3, 4], "p", "g", None)
    steps, _ = roll_out([answer], make("suffix-device:3", lambda: 0.0, device=device), 1)
    found = column(steps, "drafted").tolist()
    assert next((n for n in found if n), 0) == drafted and len(steps) == len(found) < 9 - (drafted > 0)
