# SPDX-License-Identifier: Apache-2.0
"""The replay of recorded answers: acceptance by hand, contexts, limits, and what it refuses to read."""

import json
import random

import pytest
from recording import line, write

from sam_lab.automaton import AutomatonDrafter
from sam_lab.cli import LabError
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import make_scopes, read_answers
from sam_lab.replay import OneByOne, accept_chain, accept_tree, interval, quotient, replay


def figures(drafter, answers, context, k=3, **more):
    return replay(drafter, make_scopes(answers, context), context, k, **more)


class Noting(OneByOne):
    """The rule `newest` for one request; records its calls."""

    def __init__(self):
        self.drafter, self.calls = SamDrafter(rule="newest", sources=("request",)), []

    def start(self, request, prompt_ids, group):
        self.calls.append(("start", request, group))
        self.drafter.start(request, prompt_ids, None)

    def append(self, request, tokens):
        self.calls.append(("append", request, len(tokens)))
        self.drafter.append_many([request], [tokens])

    def propose(self, request, k):
        self.calls.append(("propose", request))
        return self.drafter.propose_many([request], k)[0]

    def finish(self, request):
        self.calls.append(("finish", request))

    def drop(self, group):
        self.calls.append(("drop", group))


@pytest.mark.parametrize(
    ("tokens", "parents", "at", "accepted"),
    [
        ([5, 6, 7], None, 0, 3),
        ([5, 6, 9], None, 0, 2),
        ([7, 8], None, 2, 1),  # the answer ends
        ([5], None, 3, 0),
        ([], None, 0, 0),
        ([9, 5, 8, 6, 7], [-1, -1, 1, 1, 3], 0, 3),  # the accepted path is 5 6 7
        ([5, 6, 6, 7], [-1, 0, -1, 2], 0, 2),  # 7 follows the wrong 6
        ([5, 5, 6], [-1, -1, 0], 0, 2),  # the first of equal siblings counts
        ([6], [-1], 0, 0),
        ([5, 6, 7, 8], [-1, 0, 1, 2], 0, 3),
    ],
)
def test_drafts_are_accepted_up_to_the_first_difference(tokens, parents, at, accepted):
    """The longest correct path of a tree is accepted."""
    found = accept_chain(tokens, [5, 6, 7], at) if parents is None else accept_tree(tokens, parents, [5, 6, 7], at)
    assert found == accepted


def test_figures_of_a_replay_done_by_hand(tmp_path):
    answers = read_answers(write(tmp_path / "a.jsonl", [line(response=[1, 2, 3, 1, 2, 3, 9], prompt_ids=[8])]))
    # Steps emit 1, 2, 3, 1 without a draft; then 2 3 1 is drafted, 2 3 accepted, and 9 ends the answer.
    by_prompt = {}
    found = figures(Noting(), answers, "request", by_prompt=by_prompt)
    assert by_prompt == {"p": [7, 5]}
    expected = {"steps": 5, "tokens": 7, "tokens_per_step": 1.4, "proposed": 3, "accepted": 2, "precision": 0.6667}
    expected |= {"proposed_per_step": 0.6, "requests": 1}
    assert expected.items() <= found.items()


def test_an_interval_is_of_prompts():
    same = {str(i): [20, 10] for i in range(30)}
    half = {str(i): [10 if i % 2 else 30, 10] for i in range(30)}
    assert interval(same) == [2.0, 2.0] and interval({"0": [2, 1]}) is None
    low, high = interval(half)
    assert 1.5 < low < 1.9 < 2.1 < high < 2.5
    assert interval(half, half) == [1.0, 1.0] and quotient(half) == 2 and quotient(half, same) == 1
    without = {"0": [0, 0], "1": [1, 2]}
    assert quotient(without) == 0.5 and interval(without) is None


def calls_of(tmp_path, context):
    rows = [line("p", [1, 2], epoch=1), line("p", [3, 4, 5], epoch=1), line("p", [6], epoch=0), line("q", [7], epoch=0)]
    drafter = Noting()
    figures(drafter, read_answers(write(tmp_path / "a.jsonl", rows)), context)
    return drafter.calls


def test_group_goes_in_lock_step(tmp_path):
    found = calls_of(tmp_path, "group")
    first = next(number for name, number, *rest in found if name == "propose" and found.count((name, number)) == 2)
    second, group = first + 1, next(call[2] for call in found if call[:2] == ("start", first))
    round_of_both = [("propose", first), ("propose", second), ("append", first, 1), ("append", second, 1)]
    last = [("finish", first), ("propose", second), ("append", second, 1), ("finish", second)]
    expected = [("start", first, group), ("start", second, group), *2 * round_of_both, *last]
    assert found[found.index(expected[0]) : found.index(("drop", group))] == expected


@pytest.mark.parametrize(
    ("context", "groups"), [("request", [["sf"] * 4]), ("sequential", [[], ["sf"], ["sf"], ["sf", "sf"]])]
)
def test_one_answer_ends_before_the_next(tmp_path, context, groups):
    """Answers run one after the other. After those to a prompt its group is dropped; context `request` has no group."""
    names = [name[0] for name, *_ in calls_of(tmp_path, context) if name in ("start", "finish", "drop")]
    assert sorted("".join(names).split("d")) == ["".join(group) for group in groups]


@pytest.mark.parametrize("context", ["request", "group", "sequential"])
def test_a_private_pool_knows_nothing_of_other_prompts(tmp_path, context):
    """Each request or group drafts as if it were alone. In a shared pool the second prompt gains from the first."""
    text = random.Random(2).sample(range(1000), 60)
    answers = read_answers(write(tmp_path / "a", [line(prompt, text) for prompt in "aabb"]))
    halves = [figures(SamDrafter(), part, context)["steps"] for part in (answers[:2], answers[2:])]
    if context == "request":
        halves = [60] * 4
    private, shared = (figures(SamDrafter(private=private), answers, context)["steps"] for private in (True, False))
    assert private == sum(halves) > shared + 30


def test_history_shows_earlier_epochs_first_and_nohistory_does_not(tmp_path):
    """Earlier epochs come in their order, whatever the order of the lines, and are not scored."""
    answers = read_answers(write(tmp_path / "a.jsonl", [line("p", [number + 10], step=number) for number in (3, 2, 1)]))
    for context, expected in (("history", [[11, 12], [11, 12, 13]]), ("nohistory", [[12], [13]])):
        scopes = make_scopes(answers, context)
        assert sorted([[*answer.response_ids][0] for answer, _ in scope] for scope in scopes) == expected
        assert all([scored for _, scored in scope] == [False] * (len(scope) - 1) + [True] for scope in scopes)


@pytest.mark.parametrize("letters", [1, 3])
def test_the_articles_automaton_drafts_what_rule_oldest_does(letters):
    rng, drafted = random.Random(letters), 0
    for _ in range(20):
        drafters = AutomatonDrafter(), SamDrafter(rule="oldest", sources=("request",))
        for drafter in drafters:
            drafter.start(0, [0], None)
        for token in rng.choices(range(letters), k=50):
            for drafter in drafters:
                drafter.append_many([0], [[token]])
            found, expected = (drafter.propose_many([0], 4)[0] for drafter in drafters)
            assert found == expected
            drafted += len(found)
    assert drafted > 900


def test_group_is_the_given_one_or_the_prompts_answers_of_one_epoch(tmp_path):
    rows = [line("p"), line("p"), line("q"), line("p", epoch=1), line("p", group="a"), line("q", group="a")]
    scopes = make_scopes(read_answers(write(tmp_path / "a.jsonl", rows)), "group")
    assert sorted(map(len, scopes)) == [1, 1, 2, 2]


def test_loops_and_empty_answers_and_blank_lines_are_left_out(tmp_path):
    rows = [line("a", tail_rep=8.0), line("b", tail_rep=8.1), line("c", []), line("d", tail_rep=None), line(5)]
    path = write(tmp_path / "a.jsonl", rows)
    path.write_text("\n" + path.read_text() + "  \n")
    assert [answer.prompt_id for answer in read_answers(path)] == ["a", "d", "5"]


GOOD = {"prompt_ids": [1], "response_ids": [1], "prompt_id": 1}
BAD = {
    "{": "line 2 is not JSON",
    "[1]": "line 2 is not a JSON object: every line needs prompt_ids, response_ids and prompt_id",
    '{"prompt_ids": [1], "prompt_id": 1}': "line 2: response_ids is missing: every line needs",
    json.dumps(GOOD | {"prompt_id": None}): "line 2: prompt_id must be a string or a number",
    json.dumps(GOOD | {"epoch": "x"}): "line 2: epoch is 'x', which is not a number",
} | {json.dumps(GOOD | {"response_ids": [n]}): "line 2: response_ids must hold token ids" for n in (-1, 1 << 31, 1.5)}


@pytest.mark.parametrize("text", BAD)
def test_bad_line_is_told_with_its_number(tmp_path, text):
    path = write(tmp_path / "a.jsonl", [line()])
    path.write_text(path.read_text() + text)
    with pytest.raises(LabError, match="a.jsonl, " + BAD[text]):
        read_answers(path)
