# SPDX-License-Identifier: Apache-2.0
"""What a pool drafts, how long it remembers and what it forgets first, on examples small enough to check by eye."""

import array
import copy
import inspect
import os
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from pool_oracle import ALL, i32, step, step_tree
from sam_core.corpus import build_corpus

import sam_core
from sam_core import BY_PROMPT

A, B, C, D, E = range(5)
COPIES = ["oldest", "newest"]
RULES = [*COPIES, "count", "suffix", "blend"]


def make(rule="newest", **arguments):
    return sam_core.Pool(rule=rule, **arguments)


def draft(pool, slot, tokens=(), k=8, early=False):
    return step(pool, [(slot, tokens)], k, early=early)[0]


def empty_bytes(rule="newest"):
    """What a pool without texts takes: all that it can learn."""
    return make(rule).stats()["bytes_used"]


def finish(pool, prompt, answer, group=BY_PROMPT):
    slot = pool.open(prompt, group)
    pool.append(slot, answer)
    pool.close(slot)


def by_source(pool, what="drafts"):
    return {name: counts[what] for name, counts in pool.stats()["by_source"].items() if counts[what]}


# ---- one request ----------------------------------------------------------------------------------------------------


def test_record_of_a_draft_is_as_large_as_the_draft():
    pool = make("blend", sources=("request",))
    slot = pool.open([A, B, C, B, C])
    draft(pool, slot, k=0)
    before = pool.stats()["bytes_used"]
    assert len(draft(pool, slot, k=3)) == 3
    assert 0 < pool.stats()["bytes_used"] - before < 1000


@pytest.mark.parametrize("rule", COPIES)
def test_worked_example_of_the_article(rule):
    pool = make(rule, sources=("request",))
    slot = pool.open([A, B, C, B, C])
    assert draft(pool, slot) == [B, C]  # BC is the longest earlier suffix, BC followed its first occurrence


@pytest.mark.parametrize(
    ("rule", "expected"), [("oldest", [C, A, B, D]), ("newest", [D, A, B]), ("count", [D, A, B, D])]
)
def test_rules_choose_first_last_or_most_frequent(rule, expected):
    pool = make(rule)
    slot = pool.open([A, B, C, A, B, D, A])
    assert draft(pool, slot, [B], k=4) == expected


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        # ABB stands in the request too, at its end: what followed is B in the request, A behind the longer BB in the group
        ([A, B, B], [B, B, A], [A, B, B, A]),
        # BAA stands in the group, at an end: behind A, in both, the request's B
        ([A, B, A], [B, A, A], [A, B, A, A]),
    ],
    ids=["end of the request", "end of a sibling"],
)
def test_count_takes_the_longest_match_that_something_followed(own, other, expected):
    pool = make("count", sources=("request", "group"))
    slots = pool.open([]), pool.open([])
    assert step(pool, [(slots[0], own), (slots[1], other)], k=4)[0] == expected


def test_copy_ends_with_the_text_and_count_goes_on():
    copies, counts = make(), make("count")
    assert draft(copies, copies.open([A, A, A])) == [A]  # AA stood before, one token follows it
    assert draft(counts, counts.open([A, A, A]), k=3) == [A, A, A]


@pytest.mark.parametrize("rule", RULES)
def test_no_draft_without_a_match(rule):
    pool = make(rule)
    empty, new = pool.open([]), pool.open([A, B, C])
    assert step(pool, [(empty, []), (new, [])])[0] == []
    assert draft(pool, new, [A], k=3)[0] == B


def test_k_bounds_each_row_and_zero_only_appends():
    pool = make(sources=("request",))
    slots = [pool.open([A, B, C, D]) for _ in range(3)]
    assert step(pool, [(slot, [A]) for slot in slots], i32(0, 1, 3)) == [[], [B], [B, C, D]]
    assert step(pool, [(slot, [B]) for slot in slots], 2) == [[C, D]] * 3


def test_append_takes_an_integer_a_sequence_or_a_buffer():
    pool = make()
    slot = pool.open([A, B])
    for tokens in (C, [A], (B,), i32(C, A), array.array("i", [B]), np.int64(C), True, range(0)):
        pool.append(slot, tokens)
    same = make()
    other = same.open([A, B])
    same.append(other, [C, A, B, C, A, B, C, 1])
    assert {**pool.stats(), "bytes_used": 0} == {**same.stats(), "bytes_used": 0}
    assert pool.stats()["appended"] == 8 and pool.stats()["bytes_used"] <= same.stats()["bytes_used"] + 1000
    assert draft(pool, slot, [A, B]) == draft(same, other, [A, B]) == [C, 1, A, B]


def test_an_empty_prompt_may_be_any_empty_buffer():
    for prompt in ([], (), array.array("i"), np.empty(0, np.int32)):
        pool = sam_core.Pool()
        slot = pool.open(prompt)
        step(pool, [(slot, [A, B, A])])
        assert pool.stats()["appended"] == 3


@pytest.mark.parametrize("rule", RULES)
def test_extreme_token_ids(rule):
    pool = make(rule)
    text = [0, 2**31 - 1, 2**31 - 2, 1]
    slot = pool.open(text * 3)
    assert draft(pool, slot, k=4)[:1] == [0]
    (tokens, _, _) = step_tree(pool, [(slot, text)], 4)[0]
    assert tokens[0] == 0 and set(tokens) <= set(text)


# ---- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", COPIES)
def test_running_sibling_is_seen_in_the_same_call(rule):
    pool = make(rule)
    slow, fast = pool.open([A, B]), pool.open([A, B])
    assert step(pool, [(slow, []), (fast, [C, D, E])]) == [[C, D, E], []]
    assert step(pool, [(slow, [C]), (fast, [A])]) == [[D, E, A], [B, C, D, E, A]]


def test_end_of_a_running_sibling_is_skipped():
    pool = make()
    first, second, third = (pool.open([E, E, E]) for _ in range(3))
    step(pool, [(first, [A, B, C]), (second, [D, B])], k=0)
    # After A B and after B: A B continues with C; D B is longer for a text that ends in D B, but nothing follows it.
    assert step(pool, [(third, [D, B])]) == [[C]]


def test_early_step_drafts_from_texts_without_its_tokens():
    pool = make()
    slow, fast = pool.open([A, B]), pool.open([A, B])
    assert step(pool, [(slow, []), (fast, [C, D])]) == [[C, D], []]
    assert step(pool, [(slow, [C]), (fast, [A])], early=True) == [[D, A], [B, C, D, A]]
    assert step(pool, [(slow, []), (fast, [E])], early=True) == [[D, A, E], []], "the next call has indexed A"
    slow_indexed = pool._work()
    pool.catch_up()
    assert pool._work() > slow_indexed and pool._validate() is None
    pool.catch_up()
    assert step(pool, [(slow, [D, A]), (fast, [])], early=True) == [[E], []]


def test_early_step_indexes_at_once_what_is_new():
    pool = make()
    pool.close(pool.open([A, B, C, D]))
    assert draft(pool, pool.open([A, B, C, D, A]), [B], early=True) == [C, D, A, B]


def test_early_step_of_many_rows_indexes_later_what_is_new():
    for rows, first in ((255, [C, D, A, B]), (256, [])):
        pool = make()
        slots = [pool.open([A, B, C, D, A], None) for _ in range(rows)]
        assert step(pool, [(slot, [B]) for slot in slots], early=True) == [first] * rows
        assert step(pool, [(slot, [C]) for slot in slots], early=True) == [[D, A, B, C]] * rows


def test_tie_goes_to_the_request():
    pool = make()
    own, other = pool.open([]), pool.open([])
    step(pool, [(own, [A, B]), (other, [A, C])], k=0)
    assert draft(pool, own, [A]) == [B, A]
    assert draft(pool, other, [D, A]) == [C, D, A]
    assert by_source(pool) == {"request": 2}


def test_longer_match_of_the_group_wins():
    pool = make()
    own, other = pool.open([]), pool.open([])
    step(pool, [(other, [D, A, C])], k=0)
    assert draft(pool, own, [A, B, D, A]) == [C]
    assert pool.stats()["by_source"]["group"] == {"drafts": 1, "drafted_tokens": 1, "accepted_tokens": 0}


def test_equal_prompts_share_and_others_do_not():
    pool = make()
    pool.step(i32(pool.open([A, B])), i32(C, D), i32(2), 0, np.empty((1, 0), np.int32), i32(0))
    assert draft(pool, pool.open(array.array("i", [A, B]))) == [C, D]
    assert draft(pool, pool.open([A, B, E])) == []
    assert draft(pool, pool.open([A, B], None)) == []
    assert draft(pool, pool.open([A, B], b"name")) == []


def test_named_group_joins_different_prompts():
    pool = make()
    first = pool.open([A, B], b"name")
    draft(pool, first, [C])
    second = pool.open([D, D, B], b"name")
    assert draft(pool, second) == [C]
    assert draft(pool, first, [D]) == [B]  # a prompt of the group is a source too


@pytest.mark.parametrize("sources", [ALL, ("group", "history")])
def test_kept_answers_are_found_by_the_next_life(sources):
    pool = make(sources=sources)
    finish(pool, [A], [B, C, D])
    assert pool.stats()["slots_open"] == 0 and pool.stats()["groups"] == 1
    assert draft(pool, pool.open([A])) == [B, C, D]
    assert by_source(pool) == {"history": 1}


@pytest.mark.parametrize("group", [BY_PROMPT, b"name"])
@pytest.mark.parametrize("sources", [("request", "group"), ("group",), ("request", "group", "common")])
@pytest.mark.parametrize("rule", RULES)
def test_without_history_the_next_life_finds_nothing(rule, sources, group, tmp_path):
    pool = make(rule, sources=sources)
    empty = pool.stats()["bytes_used"]
    slots = [pool.open([A], group) for _ in range(2)]
    step(pool, [(slots[0], [B, C, D, B, C, D]), (slots[1], [])], k=0)
    pool.close(slots[0])
    assert pool.stats()["groups"] == 1 and draft(pool, slots[1], [B], k=2)[0] == C, "this life has ended too soon"
    pool.save(tmp_path / "pool")
    pool.close(slots[1])
    assert pool._validate() is None
    for next_life in (pool, sam_core.Pool.load(tmp_path / "pool")):
        stats = next_life.stats()
        assert [stats[name] for name in ("groups", "tokens", "history_texts", "bytes_used")] == [0, 0, 0, empty]
        slot = next_life.open([A], group)
        drafted = {*draft(next_life, slot), *draft(next_life, slot, [B])}
        assert drafted <= {A, B} or ("common" in sources and rule == "blend"), "not only of its own text"
        assert next_life.prompt_size(next_life.open([A, B, C, D, B, C, D], group)) == 7


@pytest.mark.parametrize("rule", RULES)
def test_removed_text_is_gone_when_the_life_ends(rule):
    pool, clean = make(rule), make(rule)
    prompt, answers = [A, B], [[C, A, A, B, D], [B, C, C, A, B]]
    gone, *stay = (pool.open(prompt) for _ in range(3))
    clean_stay = [clean.open(prompt) for _ in answers]
    for at in range(5):
        step(pool, [(gone, [E])] + [(slot, answer[at : at + 1]) for slot, answer in zip(stay, answers, strict=True)], 0)
    for slot, answer in zip(clean_stay, answers, strict=True):
        clean.append(slot, answer)
    pool.close(gone, keep=False)
    for each, slots in ((pool, stay), (clean, clean_stay)):
        assert each._validate() is None
        for slot in slots:
            each.close(slot)
    clean.drop([C])
    assert pool.stats()["tokens"] == clean.stats()["tokens"] and pool._validate() is None
    late, clean_late = ([each.open(prompt) for _ in range(2)] for each in (pool, clean))
    # The index of one was freed with the text, the other's never had it: both have the same texts in another order.
    for tokens in ([], [C], [A], [A, B], [D], [E], [B]):
        drafts = step(pool, [(slot, tokens) for slot in late])
        expected = step(clean, [(slot, tokens) for slot in clean_late])
        assert [len(draft) > 0 for draft in drafts] == [len(draft) > 0 for draft in expected]
        assert not any(E in draft for draft in drafts) or E in tokens + [E] * (tokens in ([E], [B]))


def test_removed_text_without_an_index_is_gone_at_once():
    pool = make()
    first, second = pool.open([A]), pool.open([A])
    pool.close(second, keep=False)
    assert pool.stats()["tokens"] == 1 and pool._validate() is None
    step(pool, [(first, [B, C])])
    assert draft(pool, pool.open([A]), [B]) == [C]


# ---- answers that are resumed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(2,), (1, 4), (1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("rule", [*COPIES, "count"])  # others learn from the draft that a cut loses
def test_resumed_answer_of_a_named_group_drafts_like_one_that_was_not_cut(rule, cuts):
    answer, other = [C, D, A, B, C, E, D, A], [D, E, C, D, A, B, E]
    whole, cut = make(rule), make(rule)
    slots = {pool: [pool.open([A, B], b"name"), pool.open([A, B], b"name")] for pool in (whole, cut)}
    for at in range(len(answer)):
        if at in cuts:
            cut.close(slots[cut][0])
            slots[cut][0] = cut.open([A, B, *answer[:at]], b"name")
            assert cut.prompt_size(slots[cut][0]) == 2
        rows = [[answer[at]], other[at : at + 1]]
        drafts = [step(pool, list(zip(slots[pool], rows, strict=True)), 4) for pool in (whole, cut)]
        assert drafts[0] == drafts[1] and (at < 3 or drafts[0][0])
    assert cut.stats()["tokens"] == whole.stats()["tokens"], "a text is there twice"
    assert cut._validate() is None


@pytest.mark.parametrize("lost", [1, 5, 32, 33])
def test_resumed_answer_may_lack_the_last_tokens(lost):
    pool = make("newest")
    slot = pool.open([A, B], b"name")
    pool.append(slot, [C, D, *[E] * lost])
    pool.close(slot)
    slot = pool.open([A, B, C, D, C], b"name")
    assert pool.prompt_size(slot) == (2 if lost <= 32 else 5)
    assert pool.stats()["tokens"] == (5 if lost <= 32 else 9 + lost)
    assert draft(pool, slot, [], k=2) == [D, C]
    assert pool._validate() is None


def test_fresh_sibling_of_a_short_answer_does_not_continue_it():
    pool = make("newest")
    finish(pool, [A, B], [C, D], b"name")
    assert pool.prompt_size(pool.open([A, B], b"name")) == 2
    assert pool.stats()["tokens"] == 6
    assert pool.prompt_size(pool.open([A, B], BY_PROMPT)) == 2


def test_next_turn_continues_the_conversation_also_when_nobody_else_runs():
    pool = make("count")
    for turns in ([C, D, D], [C, D, E]):
        slot = pool.open([A, B], b"name")
        pool.append(slot, turns)
        pool.close(slot)
        slot = pool.open([A, B, *turns, C, C], b"name")
        assert pool.prompt_size(slot) == 2
        pool.append(slot, [A])
        pool.close(slot)
    assert pool.stats()["history_texts"] == 2 and pool.stats()["tokens"] == 16
    # another prompt of the conversation begins a text of its own
    slot = pool.open([A, C, C], b"name")
    assert pool.prompt_size(slot) == 3 and pool.stats()["history_texts"] == 2
    with pytest.raises(ValueError, match="slot is 99, which is not an open slot"):
        pool.prompt_size(99)


def test_prompt_of_a_named_group_counts_once():
    """After B, the prompt has C once and the answers have D three times: by count D, if three copies of the prompt D too
    few."""
    pool = make("count", sources=("group", "history"))
    for answer in ([B, D, E], [E, B, D], [D, B, D]):
        finish(pool, [A, B, C], answer, b"name")
    slot = pool.open([A, B, C], b"name")
    draft(pool, slot)
    assert draft(pool, slot, [E, E, A, E, B], k=1) == [D]


def test_group_without_texts_is_freed_at_once():
    pool = make()
    slot = pool.open([A, B])
    draft(pool, slot, [C])
    pool.close(slot, keep=False)
    assert pool.stats()["groups"] == 0
    assert not pool.drop([A, B])


def test_drop_frees_and_says_so():
    pool = make()
    for group, name in ((BY_PROMPT, [A, B]), (b"name", b"name")):
        slot = pool.open([A, B], group)
        draft(pool, slot, [C])
        with pytest.raises(ValueError, match="group has 1 open slot: close them before dropping it"):
            pool.drop(name)
        pool.close(slot)
        assert pool.drop(name) is True
        assert pool.drop(name) is False
        assert draft(pool, pool.open([A, B], group)) == []


def test_unselected_source_is_not_indexed():
    request, group = make(sources=("request",)), make(sources=("group",))
    slots = [request.open([A, B]) for _ in range(2)]
    assert step(request, [(slots[0], [C]), (slots[1], [])]) == [[], []]
    assert request.stats()["groups"] == 0
    private = group.open([A, A, A], None)
    assert draft(group, private, [A, A]) == []
    assert group.stats()["bytes_used"] == empty_bytes() and group.stats()["appended"] == 2


def test_closed_number_is_not_used_again_for_a_while():
    pool = make()
    numbers = []
    for _ in range(1000):
        numbers.append(pool.open([A]))
        pool.close(numbers[-1])
        with pytest.raises(ValueError, match="which is not an open slot"):
            pool.append(numbers[-1], A)
    last = {}
    for at, number in enumerate(numbers):
        assert at - last.get(number, -1000) > 64
        last[number] = at
    assert max(numbers) < 100  # they are used again


# ---- history --------------------------------------------------------------------------------------------------------


def test_history_and_present_answers_are_one_source():
    pool = make("count")
    for answer in ([B, C, E], [B, D, E], [B, C, E]):
        finish(pool, [A], answer)
    slot, other = pool.open([A]), pool.open([A])
    assert draft(pool, slot, [B], k=1) == [C]
    for tokens in ([B, D, E], [A, B, D, E], [A, B, D, E]):
        pool.append(other, tokens)
    assert draft(pool, slot, [], k=1) == [D]
    assert by_source(pool) == {"history": 1, "group": 1}
    assert pool.stats()["history_texts"] == 3 and pool.stats()["history_tokens"] == 12
    pool.close(slot)
    pool.close(other)
    assert pool.stats()["history_texts"] == 5


@pytest.mark.parametrize("sources", [ALL, ("group", "history")])
def test_texts_of_a_closed_group_outlive_its_index(sources):
    prompt, answer = [A] * 10, random.Random(1).choices(range(5), k=2000)

    def live(pool):
        slots = [pool.open(prompt) for _ in range(2)]
        step(pool, [(slots[0], answer), (slots[1], [])])
        for slot in slots:
            pool.close(slot)

    full = make(sources=sources)
    live(full)
    room = full.stats()["bytes_used"] - empty_bytes()
    pool = make(sources=sources, memory_bytes=empty_bytes() + int(1.5 * room))
    live(pool)
    other = pool.open([E], None)
    pool.append(other, answer[:1900])
    stats = pool.stats()
    assert (stats["groups"], stats["evicted_groups"], stats["exhausted"]) == (1, 0, 0) and pool._validate() is None
    pool.close(other)
    slot = pool.open(prompt)
    draft(pool, slot, [])
    for at in range(0, 500, 100):
        assert draft(pool, slot, answer[at : at + 100])[:3] == answer[at + 100 : at + 103]
    assert pool._validate() is None and set(by_source(pool)) >= {"history" if "history" in sources else "group"}


# ---- corpus ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
    build_corpus([[50, 51, 52, 53, 54], [61, 51, 52, 63]], tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.mark.parametrize("rule", RULES)
def test_corpus_is_a_source(rule, corpus):
    pool = make(rule, sources=("request",), corpus=corpus)
    slot = pool.open([7, 61, 51])
    assert draft(pool, slot, k=2) == [52, 63]
    assert draft(pool, slot, [50, 51, 52], k=2) == [53, 54]
    assert by_source(pool) == {"corpus": 2} and by_source(pool, "drafted_tokens") == {"corpus": 4}
    pool.append(slot, [53, 54])
    assert by_source(pool, "accepted_tokens") == {"corpus": 2}
    pool.close(slot)
    assert pool._validate() is None and pool.stats()["bytes_used"] == empty_bytes(rule)


@pytest.mark.parametrize("between", [0, 1, 31, 32, 33, 200])
def test_corpus_match_is_brought_up_to_date_when_drafting(corpus, between, tmp_path):
    text = list(range(100, 180))
    build_corpus([text], tmp_path / "long")
    pool, stepwise = (make(sources=("request",), corpus=str(tmp_path / "long")) for _ in range(2))
    slot, other = pool.open(text[:1], None), stepwise.open(text[:1], None)
    for tokens in ([9] * between, text[:40]):
        pool.append(slot, tokens)
        for token in tokens:
            draft(stepwise, other, [token], k=1)
    assert draft(pool, slot, k=4) == draft(stepwise, other, k=4) == text[40:44]


@pytest.mark.parametrize("length", [1, 20, 31])
def test_corpus_match_is_as_long_as_it_can_be(length, tmp_path):
    common = list(range(100, 100 + length))
    build_corpus([[1, *common, 3], [2, *common, 4], [1, *common, 3]], tmp_path / "corpus")
    pool = make("oldest", sources=("request",), corpus=tmp_path / "corpus")
    slot = pool.open([9] * 50, None)
    pool.append(slot, [9] * 50 + [2, *common])
    assert draft(pool, slot, k=1) == [4]


def test_private_slot_of_a_pool_without_request_source_drafts_from_the_corpus(corpus):
    pool = make(sources=("group",), corpus=corpus)
    assert draft(pool, pool.open([50], None), k=2) == [51, 52]


# ---- trees, scores, learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_tree_holds_several_continuations(rule):
    pool = make(rule)
    first, second, slot = (pool.open([A]) for _ in range(3))
    step(pool, [(first, [B, C, D]), (second, [B, D, D])], k=0)
    tokens, parents, _ = step_tree(pool, [(slot, [B])], 8)[0]
    roots = {token for token, parent in zip(tokens, parents, strict=True) if parent == -1}
    assert roots >= ({C, D} if rule not in COPIES else {C if rule == "oldest" else D})


@pytest.mark.parametrize("rule", RULES)
def test_scores_learn_what_comes_true(rule):
    def last_score(follow):
        pool, rng = make(rule, sources=("request",)), random.Random(1)
        slot = pool.open([A])
        for _ in range(300):
            tokens, _, scores = step_tree(pool, [(slot, [follow(rng, at) for at in range(4)])], 4)[0]
        return scores[0] if scores else 0.0, pool.stats()

    regular, stats = last_score(lambda rng, at: at)
    random_, other = last_score(lambda rng, at: rng.randrange(50))
    assert regular > 0.9 and random_ < 0.25
    assert stats["accepted_tokens"] > 0.9 * stats["drafted_tokens"] > 500
    assert other["accepted_tokens"] < 0.2 * other["drafted_tokens"]


@pytest.mark.parametrize("rule", RULES)
def test_min_prob_ends_drafts_and_is_what_scores_say(rule):
    rng = random.Random(4)
    pools = [make(rule, min_prob=least) for least in (0.0, 0.3, 1.0)]
    slots = [pool.open([A]) for pool in pools]
    for _ in range(100):
        tokens = [rng.randrange(6) for _ in range(3)]
        for pool, slot, least in zip(pools, slots, (0.0, 0.3, 1.0), strict=True):
            (_, _, scores) = step_tree(pool, [(slot, tokens)], 6)[0]
            assert all(score >= least for score in scores)
    drafted = [pool.stats()["drafted_tokens"] for pool in pools]
    assert drafted[0] > drafted[1] > drafted[2] == 0


@pytest.mark.parametrize("rule", RULES)
def test_same_calls_give_the_same_drafts(rule):
    def run():
        pool, rng, drafts = make(rule), random.Random(8), []
        slots = [pool.open([A, B]) for _ in range(4)]
        for _ in range(50):
            drafts += step_tree(pool, [(slot, [rng.randrange(4)]) for slot in slots], 6)
        return drafts, pool.stats()

    assert run() == run()


def test_longest_draft():
    pool = make()
    slot = pool.open([*range(100), 0])
    out, lengths = np.zeros((1, 80), np.int32), i32(0)
    pool.step(i32(slot), i32(), i32(0), 64, out, lengths)
    assert 0 < lengths[0] <= 64 and out[0, : lengths[0]].tolist() == list(range(1, lengths[0] + 1))


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_memory_returns_to_that_of_an_empty_pool(rule):
    pool = make(rule)
    rng = random.Random(5)
    prompts = [[rng.randrange(9) for _ in range(20)] for _ in range(40)]
    for _ in range(2):
        slots = [pool.open(prompt) for prompt in prompts for _ in range(3)]
        for _ in range(30):
            step(pool, [(slot, [rng.randrange(9)]) for slot in slots])
        assert pool.stats()["bytes_used"] > 100_000 and pool._validate() is None
        for number, slot in enumerate(slots):
            pool.close(slot, keep=number % 2 == 0)
    for prompt in prompts:
        pool.drop(prompt)
    stats = pool.stats()
    assert (stats["bytes_used"], stats["tokens"], stats["groups"]) == (empty_bytes(rule), 0, 0)
    assert pool._validate() is None


def come_back(pool, prompt, answer):
    """A life of a prompt whose answer is always the same; return how many of its tokens were accepted."""
    before = pool.stats()["accepted_tokens"]
    slot = pool.open(prompt)
    for at in range(0, len(answer), 4):
        draft(pool, slot, answer[at : at + 4], k=4)
    pool.close(slot)
    return pool.stats()["accepted_tokens"] - before


def test_groups_that_come_in_turns_do_not_all_miss_each_other():
    """If the one closed longest ago went, each would be gone when its turn comes."""
    rng = np.random.default_rng(1)
    prompts = [[number] for number in range(60)]
    answers = [rng.permutation(1000)[:200].tolist() for _ in prompts]
    alone = make("newest")
    for prompt, answer in zip(prompts, answers, strict=True):
        come_back(alone, prompt, answer)
    room = alone.stats()["tokens"] * 4 + 60 * 500
    pool = make("newest", memory_bytes=empty_bytes() + room // 2 + 30_000)
    hits = []
    for _ in range(6):
        accepted = [come_back(pool, *turn) for turn in zip(prompts, answers, strict=True)]
        hits.append(sum(count > 100 for count in accepted))
        assert pool._validate() is None
    assert hits[0] == 0 and min(hits[2:]) >= 8, hits  # about a third of them fit


def test_a_group_that_comes_back_stays_beside_many_that_do_not():
    rng = np.random.default_rng(1)
    answer = rng.permutation(1000)[:200].tolist()
    pool = make("newest", memory_bytes=empty_bytes() + 60_000)
    hits = 0
    for turn in range(300):
        if turn % 10 == 0:
            hits += come_back(pool, [0], answer) > 100
        come_back(pool, [1, turn], rng.permutation(1000)[:200].tolist())
    assert pool.stats()["evicted_groups"] > 200 and hits >= 27


def test_prompts_seen_once_an_epoch_keep_some_of_their_answers():
    """An epoch's answers need two and a half times the memory: all prompts are thinned, hardly any is forgotten."""
    prompts, siblings, length = 300, 8, 100
    text = 4 * length + 150
    pool = make(memory_bytes=empty_bytes() + 2 * prompts * siblings * text // 5)
    rng = np.random.default_rng(0)
    for _ in range(2):
        for prompt in rng.permutation(prompts):
            slots = [pool.open([int(prompt), A, B]) for _ in range(siblings)]
            for slot in slots:
                pool.append(slot, rng.integers(0, 1000, length, np.int32))
            for slot in slots:
                pool.close(slot)
        stats = pool.stats()
        assert stats["groups"] > 0.98 * prompts
        assert 3 * prompts / 2 < stats["history_texts"] < 4 * prompts


def test_groups_that_never_come_back_make_room():
    pool = make("newest", memory_bytes=empty_bytes() + 60_000)
    rng = np.random.default_rng(1)
    for turn in range(500):
        come_back(pool, [1, turn], rng.permutation(1000)[:200].tolist())
    answer, hits = rng.permutation(1000)[:200].tolist(), 0
    for turn in range(500, 700):
        hits += come_back(pool, [turn % 3], answer) > 100
        come_back(pool, [1, turn], rng.permutation(1000)[:200].tolist())
    assert hits > 180 and pool._validate() is None


def test_hot_group_keeps_what_was_said_lately():
    """Two answers of one prompt overlap all the time, so its life never ends; texts fill the memory many times."""
    rng = np.random.default_rng(0)
    pool = make("blend", memory_bytes=4 << 20)
    answer, prompt = rng.integers(0, 50_000, 400), list(range(50))
    previous, accepted = pool.open(prompt), []
    for _ in range(600):
        slot, text = pool.open(prompt), answer.copy()
        text[rng.integers(0, 400, 20)] = rng.integers(0, 50_000, 20)
        before = pool.stats()["by_source"]["group"]["accepted_tokens"]
        for at in range(0, 400, 8):
            draft(pool, slot, text[at : at + 8].tolist())
        accepted.append(pool.stats()["by_source"]["group"]["accepted_tokens"] - before)
        pool.close(previous)
        previous = slot
    stats = pool.stats()
    assert stats["evicted_history"] > 2 and stats["exhausted"] == 0 and pool._validate() is None
    assert np.mean(accepted[-300:]) > 0.93 * np.mean(accepted[20:120])
    assert stats["tokens"] < 300_000


def test_hot_group_that_gives_nothing_leaves_the_memory_to_others():
    rng = np.random.default_rng(0)
    pool = make("blend", memory_bytes=2 << 20)
    hot = [pool.open(range(50)) for _ in range(4)]
    for turn in range(1500):
        pool.close(hot.pop(0))
        hot.append(pool.open(range(50)))
        other = pool.open(rng.integers(0, 300, 60).tolist())
        for _ in range(2):
            drafts = step(pool, [(slot, rng.integers(0, 200, 10).tolist()) for slot in [*hot, other]], 4)
        assert drafts[-1], turn
        pool.close(other)
    stats = pool.stats()
    assert stats["exhausted"] == 0 and stats["tokens"] > 4 * 70 and pool._validate() is None


def test_what_found_no_memory_drafts_when_there_is_some():
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 1000, (2, 3000)).tolist()
    pool = make("count", memory_bytes=empty_bytes("count") + 740_000)
    hungry = pool.open([E], None)
    pool.append(hungry, rng.integers(0, 1000, 8500).astype(np.int32))
    slots = [pool.open([A]) for _ in texts]
    for at in range(0, 3000, 500):
        drafts = step(pool, [(slot, text[at : at + 500]) for slot, text in zip(slots, texts, strict=True)], 4)
        assert pool._validate() is None
    assert [] in drafts and pool.stats()["exhausted"] > 0
    pool.close(hungry)
    for _ in range(8):
        step(pool, [(slot, []) for slot in slots], 4)
    drafts = step(pool, [(slots[0], texts[0][40:60]), (slots[1], texts[0][40:60])], 3)
    assert drafts == [texts[0][60:63]] * 2 and pool._validate() is None


def test_request_indexes_go_before_the_groups():
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 1000, (8, 1500)).tolist()
    both, group = (make("count", sources=sources) for sources in (("request", "group"), ("group",)))
    sizes = []
    for pool in (both, group):
        slots = [pool.open([A]) for _ in texts]
        for _ in range(8):
            step(pool, [(slot, text if not _ else []) for slot, text in zip(slots, texts, strict=True)], 1)
        sizes.append(pool.stats()["bytes_used"])
    pool = make("count", memory_bytes=sum(sizes) // 2, sources=("request", "group"))
    slots = [pool.open([A]) for _ in texts]
    for at in range(0, 1500, 100):
        drafts = step(pool, [(slot, text[at : at + 100]) for slot, text in zip(slots, texts, strict=True)], 2)
    for _ in range(30):
        drafts = step(pool, [(slot, []) for slot in slots], 2)
    # Each text's end came nowhere before: ask in the words of a sibling.
    drafts = step(pool, [(slot, texts[number - 1][:20]) for number, slot in enumerate(slots)], 2)
    assert drafts == [texts[number - 1][20:22] for number in range(8)]
    assert pool.stats()["exhausted"] == 0 and pool._validate() is None


@pytest.mark.parametrize("rule", COPIES)
def test_private_requests_that_found_no_memory_draft_when_there_is_some(rule):
    limit = empty_bytes(rule) + 100_000
    pool = make(rule, memory_bytes=limit)
    slots = [pool.open([A, B, C], None) for _ in range(8)]
    rng = random.Random(1)
    for _ in range(120):
        drafts = step(pool, [(slot, rng.choices(range(4), k=4)) for slot in slots], 3)
        assert pool.stats()["bytes_used"] <= limit
    stats = pool.stats()
    assert 0 < stats["exhausted"] < 8 and 0 < sum(map(bool, drafts)) < 8 and pool._validate() is None
    for slot in slots[:7]:
        pool.close(slot)
    for _ in range(3):
        drafts = draft(pool, slots[7], rng.choices(range(4), k=4), k=3)
    assert drafts and pool._validate() is None
    pool.close(slots[7])
    assert pool.stats()["bytes_used"] == empty_bytes(rule)


def test_request_whose_tokens_cannot_be_stored_never_drafts_again():
    pool = make(memory_bytes=empty_bytes() + 60_000)
    late = pool.open([E] * 20_000)
    assert draft(pool, late, [E]) == [] and pool.stats()["exhausted"] == 1
    pool.close(late)
    assert pool.stats()["bytes_used"] == empty_bytes() and pool._validate() is None


def test_request_without_memory_drafts_again_as_soon_as_its_text_fits():
    """It waits for a share of the memory for texts and indexes, which does not grow with what the pool learns."""
    pool = make("blend", sources=("request",), memory_bytes=empty_bytes("blend") + 250_000)
    text, slots = [*range(250)] * 2, []
    while not slots or draft(pool, slots[-1], [0]):
        slots.append(pool.open(text, None))
    assert len(slots) > 4 and pool.stats()["exhausted"] <= 1
    for slot in slots[:2]:
        pool.close(slot)
    assert draft(pool, slots[-1], [1])


def test_smallest_pool_drafts_nothing():
    pool = make(memory_bytes=empty_bytes())
    slot = pool.open([A, A])
    assert draft(pool, slot, [A, A]) == []
    assert pool.stats()["exhausted"] == 1 and pool.stats()["bytes_used"] == empty_bytes()


def test_exhausted_private_request_gives_back_what_it_holds():
    pool = make(memory_bytes=empty_bytes() + 10_000)
    slot = pool.open([A], None)
    pool.append(slot, [A] * 10_000)
    stats = pool.stats()
    assert (stats["exhausted"], stats["tokens"], stats["bytes_used"]) == (1, 0, empty_bytes())
    pool.append(slot, [A])
    assert pool.stats()["appended"] == 10_001 and pool._validate() is None


# ---- size and loops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 7, 50, 200])
@pytest.mark.parametrize("rule", ["oldest", "newest", "count"])
def test_long_repetition_loop_stays_fast(rule, period):
    pool = make(rule)
    size, members = 34_000, 2
    loop = np.arange(1000, 1000 + period, dtype=np.int32)
    slots = [pool.open(range(50)) for _ in range(members)]
    rows = np.resize(loop, size)
    for slot in slots:
        pool.append(slot, rows)
    # A walk up all links would take 10**7 and more; matches have a largest length.
    most = 4 if rule == "oldest" else 280
    assert pool._work() < most * size * members
    for drafts in step(pool, [(slot, []) for slot in slots], 3):
        assert drafts[0] == loop[size % period]


@pytest.mark.parametrize("rule", ["oldest", "newest", "count"])
def test_loops_that_break_off_and_resume_stay_fast(rule):
    pool = make(rule)
    text = ([A] * 3000 + [B]) * 10
    pool.append(pool.open([]), text)
    assert 0 < pool._work() < (4 if rule == "oldest" else 400) * len(text)


@pytest.mark.parametrize("rule", ["newest", "blend"])
def test_request_of_a_million_tokens(rule):
    pool = make(rule, sources=("request",))
    tokens = np.random.default_rng(0).zipf(1.3, 1_000_000).clip(0, 50_000).astype(np.int32)
    slot = pool.open(tokens[:500_000])
    pool.append(slot, tokens[500_000:])
    stats = pool.stats()
    assert stats["tokens"] == 1_000_000 and stats["exhausted"] == 0 and stats["bytes_used"] < 150e6
    assert pool._work() < 30 * 1_000_000
    assert draft(pool, slot, tokens[1000:1020])[:2] == tokens[1020:1022].tolist()


def test_ten_thousand_open_slots():
    pool, rng = make("newest"), np.random.default_rng(0)
    prompts = rng.integers(0, 50, (500, 12)).astype(np.int32)
    slots = np.array([pool.open(prompts[number % 500]) for number in range(10_000)], np.int32)
    out, lengths = np.zeros((10_000, 3), np.int32), np.zeros(10_000, np.int32)
    for _ in range(3):
        tokens = rng.integers(0, 50, 20_000).astype(np.int32)
        pool.step(slots, tokens, np.full(10_000, 2, np.int32), 3, out, lengths)
    stats = pool.stats()
    assert (stats["slots_open"], stats["groups"], stats["tokens"]) == (10_000, 500, 180_000)
    assert (lengths > 0).mean() > 0.5 and pool._validate() is None
    for slot in slots.tolist():
        pool.close(slot)
    assert pool.stats()["slots_open"] == 0 and pool._validate() is None


# ---- the Python face ------------------------------------------------------------------------------------------------


def test_plain_buffers_serve_as_well_as_numpy():
    pool = make()
    slot = pool.open(memoryview(array.array("i", [A, B, C, A])))
    ints = [array.array("i", values) for values in ([slot], [B], [1])]
    out, lengths = array.array("i", [-1] * 4), array.array("i", [-1])
    scores = memoryview(array.array("f", [-1] * 4)).cast("B").cast("f", [1, 4])
    parents = memoryview(array.array("i", [-9] * 4)).cast("B").cast("i", [1, 4])
    pool.step(*ints, np.int64(2), memoryview(out).cast("B").cast("i", [1, 4]), lengths, scores, parents)
    assert (out.tolist(), lengths.tolist(), parents.tolist()) == ([C, A, -1, -1], [2], [[-1, 0, -9, -9]])
    assert 0 < scores[0, 1] <= scores[0, 0] <= 1 and scores[0, 2] == -1
    with pytest.raises(ValueError):
        pool.step(*ints, 9, memoryview(out).cast("B").cast("i", [1, 4]), lengths)
    for buffer in [*ints, out, lengths]:
        buffer.append(0)  # nothing is held after a call


def test_new_tokens_as_parts_of_the_rows_of_a_table():
    """Rows at any distance, backwards too, more of them than slots, read-only; what is not new may be anything."""
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 9, (3, 40)).astype(np.int32)
    wide = np.full((8, 50), -1, np.int32)
    wide[6:0:-2, 5:45] = whole
    backwards = wide[6::-2, 5:45]
    backwards.flags.writeable = False
    drafts = []
    for table in (None, whole, backwards):
        pool = make()
        slots = np.array([pool.open([], group=None) for _ in range(3)], np.int32)
        out, lengths = np.zeros((3, 4), np.int32), np.zeros(3, np.int32)
        done = np.zeros(3, np.int32)
        for counts in (i32(0, 7, 3), i32(20, 1, 0), i32(20, 32, 37)):
            packed = np.concatenate([row[at : at + n] for row, at, n in zip(whole, done, counts, strict=True)])
            tokens, starts = (packed, None) if table is None else (table, done)
            pool.step(slots, tokens, counts, 4, out, lengths, starts=starts)
            done += counts
        assert pool._validate() is None and pool.stats()["appended"] == 120
        drafts.append([row[:n].tolist() for row, n in zip(out, lengths, strict=True)])
    assert drafts[0] == drafts[1] == drafts[2] and any(drafts[0])
    pool.step(i32(), np.empty((0, 0), np.int32), i32(), 4, out[:0], i32(), starts=i32())


def test_signatures_and_constants():
    signature = inspect.signature(sam_core.Pool.step)
    assert list(signature.parameters) == [
        *("self", "slots", "tokens", "counts", "k", "out", "lengths", "scores", "parents", "starts"),
        *("sources", "match_lengths", "early"),
    ]
    assert list(inspect.signature(sam_core.Pool.append).parameters) == ["self", "slot", "tokens"]
    assert inspect.signature(sam_core.Pool.open).parameters["group"].default == BY_PROMPT
    pool = {name: p.default for name, p in inspect.signature(sam_core.Pool).parameters.items()}
    unknown = {"vocab_size": None, "tokenizer": None}
    given = {"memory_bytes": 1 << 30, "rule": "blend", "sources": ALL, "corpus": None, "min_prob": 0.0}
    assert pool == given | unknown
    load = inspect.signature(sam_core.Pool.load).parameters
    assert list(load) == ["path", "memory_bytes", "corpus", "min_prob", "vocab_size", "tokenizer"]
    assert sam_core.SOURCES == ("request", "group", "corpus", "history", "common")


def test_attributes():
    pool = make("count", sources=("group", "history"), min_prob=0.25)
    assert (pool.rule, pool.sources, pool.min_prob) == ("count", ("group", "history"), 0.25)
    with pytest.raises(AttributeError):
        pool.rule = "blend"
    for wrong, error in ((1.5, ValueError), (float("nan"), ValueError), ("0.1", TypeError)):
        with pytest.raises(error):
            pool.min_prob = wrong
    with pytest.raises(AttributeError, match="min_prob cannot be deleted"):
        del pool.min_prob
    assert pool.min_prob == 0.25


@pytest.mark.parametrize("rule", RULES)
def test_min_prob_can_be_changed(rule):
    """From the next step on a pool drafts as one that was made with it."""
    pools = [make(rule, min_prob=0.9), make(rule)]
    slots = [pool.open([1, 2, 3, 4, 1, 2, 3, 4, 1]) for pool in pools]
    assert step(pools[0], [(slots[0], [2])], 4) == [[]] and len(step(pools[1], [(slots[1], [2])], 4)[0]) > 0
    pools[0].min_prob = 0
    drafts = [step(pool, [(pool.open([1, 2, 3, 4, 1, 2], None), [])], 4) for pool in pools]
    assert drafts[0][0] and (rule == "blend" or drafts[0] == drafts[1])


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", RULES)
def test_no_draft_has_a_token_outside_the_vocabulary(rule, tree, tmp_path):
    """Whatever the texts hold; a draft ends before it, and begins as without the limit."""
    rng, lengths = random.Random(f"{rule} {tree}"), []
    pools = [make(rule, sources=ALL, vocab_size=limit) for limit in (None, 7)]
    slots = [pool.open([9, 1, 2]) for pool in pools]
    for _ in range(200):
        new = [rng.choice((1, 2, 3, 7, 8))] * rng.randrange(3) + [1, 2, 3]
        free, bound = (
            step_tree(pool, [(slot, new)], 8)[0][0] if tree else step(pool, [(slot, new)], 8)[0]
            for pool, slot in zip(pools, slots, strict=True)
        )
        assert max(bound, default=0) < 7
        lengths.append((len(free), len(bound)))
        if not tree and rule == "newest":
            assert bound == free[: next((at for at, token in enumerate(free) if token > 6), 8)]
    assert sum(bound for _, bound in lengths) > 50 and any(bound < free for free, bound in lengths)


def test_min_prob_of_0_ends_a_draft_only_below_2_to_the_minus_30():
    """Or where no token is left; so the documentation says."""
    rng, pool, ended = random.Random(4), make("blend", min_prob=0), 0
    slot, parents = pool.open([1]), None
    out, scores, lengths = np.zeros((1, 64), np.int32), np.zeros((1, 64), np.float32), np.zeros(1, np.int32)
    for _ in range(300):
        new = i32(*(rng.randrange(40) for _ in range(3)))
        pool.step(i32(slot), new, i32(3), 64, out, lengths, scores, parents)
        if 0 < (n := lengths[0]) < 64:
            ended += 1
            assert 2**-30 <= scores[0, n - 1] < 2**-18  # a token is never less probable than 1/4096
    assert ended > 100


def test_import_of_the_pool_does_not_load_numpy():
    code = "import sys, sam_core; sam_core.Pool().open([1]); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_is_refused(act):
    with pytest.raises(TypeError, match="a Pool can be neither pickled nor copied"):
        act(make())


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        print("none")
        raise SystemExit
number = interpreters.create()
try:
    print(interpreters.run_string(number, "import sam_core"))
except interpreters.RunFailedError as error:
    print(error)
"""


def test_subinterpreters_are_refused():
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True)
    if done.stdout == "none\n":
        pytest.skip("this Python cannot make subinterpreters")
    assert "ImportError" in done.stdout and "interpreter" in done.stdout, done.stderr


def in_child(act):
    """Call `act` in a forked child that is killed if it hangs; return whether it returned true."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(20)
        done = False
        try:
            done = act()
        finally:
            os._exit(0 if done else 1)  # whatever happened, no second pytest goes on from here
    return os.waitpid(child, 0)[1] == 0


def refuses(call):
    try:
        call()
    except RuntimeError as error:
        return f"this pool belongs to process {os.getppid()}, of which this one is a fork" in str(error)
    return False


def test_child_of_a_fork_is_refused_and_makes_its_own(tmp_path):
    pool = make()
    slot = pool.open([A, B, C, A])

    def child():
        calls = [
            lambda: draft(pool, slot, [B]),
            lambda: pool.append(slot, 1),
            lambda: pool.open([A]),
            lambda: pool.close(slot),
            lambda: pool.drop([A]),
            lambda: pool.save(tmp_path / "pool"),
            pool.stats,
        ]
        own = make()
        return all(refuses(call) for call in calls) and draft(own, own.open([A, B, A])) == [B, A]

    assert in_child(child)
    assert draft(pool, slot, [B]) == [C, A, B]


def test_fork_during_a_step_of_another_thread():
    pool = make(sources=("request",))
    slot = pool.open([])
    tokens = np.random.default_rng(0).integers(0, 50, 1_000_000).astype(np.int32)
    thread = threading.Thread(target=pool.append, args=(slot, tokens))
    thread.start()
    assert thread.is_alive() and in_child(lambda: refuses(pool.stats))
    thread.join()
    assert pool.stats()["appended"] == 1_000_000


def test_threads_wait_for_each_other():
    pool = make(sources=("request",))
    rng = random.Random(3)
    texts = [[[rng.randrange(3) for _ in range(400)] for _ in range(50)] for _ in range(4)]
    drafts = [[] for _ in texts]

    def run(number):
        slot = pool.open([])
        for tokens in texts[number]:
            drafts[number].append(draft(pool, slot, tokens))
            for token in tokens[:20]:
                pool.append(slot, token)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text, got in zip(texts, drafts, strict=True):
        alone = make(sources=("request",))
        slot = alone.open([])
        for tokens, wanted in zip(text, got, strict=True):
            assert draft(alone, slot, tokens) == wanted
            alone.append(slot, tokens[:20])
    assert pool.stats()["appended"] == 4 * 50 * 420 and pool._validate() is None


def test_one_token_waits_for_a_call_of_another_thread():
    pool = make()
    busy, slot = pool.open([A]), pool.open([A])
    tokens = np.random.default_rng(0).integers(0, 50, 400_000).astype(np.int32)
    thread = threading.Thread(target=pool.append, args=(busy, tokens))
    thread.start()
    appended = 0
    while thread.is_alive():
        pool.append(slot, appended % 50)
        appended += 1
    thread.join()
    assert pool.stats()["appended"] == 400_000 + appended and pool._validate() is None


def test_other_threads_run_during_a_step():
    pool = make()
    slot = pool.open([])
    tokens = np.random.default_rng(0).integers(0, 50, 300_000).astype(np.int32)
    turns, stop = [0], threading.Event()

    def spin():
        while not stop.is_set():
            turns[0] += 1
            stop.wait(0.0005)

    thread = threading.Thread(target=spin)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the interpreter takes the GIL from nobody: only step can give it up
    try:
        thread.start()
        before = turns[0]
        for _ in range(200):  # each indexes a part
            pool.step(i32(slot), tokens, i32(len(tokens)), 0, np.empty((1, 0), np.int32), i32(0))
        during = turns[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert during >= 3


def test_a_named_group_gets_its_whole_prompt_in_steps_of_any_size():
    """Its first text of a life is fed over several steps, the last of which many rows share."""
    rng = np.random.default_rng(0)
    prompt, answer = rng.integers(0, 1000, 2500).tolist(), rng.integers(0, 1000, 40).tolist()
    pool = make("newest")
    others = [pool.open([E], None) for _ in range(256)]
    finish(pool, prompt, answer, b"g")
    slots = [pool.open(prompt, b"g")]
    for _ in range(4):
        step(pool, [(slot, [number]) for number, slot in enumerate([*others, slots[0]])], 3)
    slots.append(pool.open(prompt, b"g"))
    for _ in range(4):
        step(pool, [(slot, []) for slot in slots], 3)
    assert pool._validate() is None
    assert draft(pool, slots[1], answer[:10], k=3) == answer[10:13] and "history" in by_source(pool)


def test_a_long_prompt_holds_up_no_other_request():
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 1000, (8, 200)).tolist()
    pool = make("newest", sources=("request",))
    slots = [pool.open(text) for text in texts]
    step(pool, [(slot, []) for slot in slots], 3)
    slots[3] = pool.open(rng.integers(0, 1000, 8000).tolist())
    drafts = step(pool, [(slot, text[:20]) for slot, text in zip(slots, texts, strict=True)], 3)
    assert [d for at, d in enumerate(drafts) if at != 3] == [t[20:23] for at, t in enumerate(texts) if at != 3]
    assert drafts[3] == []


def test_a_text_that_cannot_be_continued_stays():
    pool = make("newest", memory_bytes=empty_bytes() + 120_000)
    finish(pool, [A], [B, C, D] * 10, b"g")
    slot = pool.open([A, *[B, C, D] * 9, *range(100_000)], b"g")
    assert pool.stats()["exhausted"] == 1
    pool.close(slot)
    assert pool.stats()["history_tokens"] == 31 and pool._validate() is None


def drops(pool, slots, rng, steps, count):
    """Steps, each with `count` tokens a slot and drafts, in which an index was freed; and rows that had drafts."""
    freed, drafted, before = 0, 0, pool.stats()["bytes_used"]
    for _ in range(steps):
        drafted += sum(map(bool, step(pool, [(slot, rng.integers(0, 1000, count).tolist()) for slot in slots], 4)))
        after = pool.stats()["bytes_used"]
        freed += after < before - 30_000
        before = after
    return freed, drafted


def test_beside_a_full_history_request_indexes_are_not_built_again_and_again():
    """Nothing that closed texts hold may be freed for them where the group has the text."""
    rng = np.random.default_rng(0)
    pool = make("count", memory_bytes=empty_bytes("count") + (8 << 20))
    for number in range(1200):
        finish(pool, [E, number], rng.integers(0, 1000, 2000, np.int32))
    freed, drafted = drops(pool, [pool.open([A]) for _ in range(4)], rng, 800, 10)
    assert freed < 20 and drafted > 3100 and pool._validate() is None


def test_groups_that_do_not_fit_together_are_not_built_again_and_again():
    rng = np.random.default_rng(0)
    pool = make("count", memory_bytes=empty_bytes("count") + (3 << 19))
    slots = []
    for prompt in ([A], [B]):
        slots += [pool.open(prompt) for _ in range(2)]
        for _ in range(16):
            slot = pool.open(prompt)
            for _ in range(10):
                draft(pool, slot, rng.integers(0, 1000, 100).tolist())
            pool.close(slot)
    for _ in range(60):
        step(pool, [(slot, []) for slot in slots], 4)
    freed, drafted = drops(pool, slots, rng, 800, 5)
    assert freed < 20 and drafted > 3100 and pool._validate() is None
    assert 0 < pool.stats()["evicted_history"] < 8


def test_texts_that_close_after_their_group_lost_its_index_make_room():
    rng = np.random.default_rng(0)
    pool = make("count", memory_bytes=empty_bytes("count") + 300_000)
    slots = [pool.open([A]) for _ in range(16)]
    for _ in range(100):
        step(pool, [(slot, rng.integers(0, 1000, 20).tolist()) for slot in slots], 4)
    for slot in slots[1:]:
        pool.close(slot)
    exhausted, other = pool.stats()["exhausted"], pool.open([E], None)
    while pool.stats()["exhausted"] == exhausted:
        pool.append(other, rng.integers(0, 1000, 200, np.int32))
    assert pool.stats()["tokens"] < 10_000 and pool._validate() is None


def test_a_group_without_an_index_gets_one_when_most_of_its_texts_have_closed():
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 1000, (16, 1000)).tolist()
    texts[0][-4:] = texts[15][500:504]
    pool = make("newest", memory_bytes=empty_bytes() + 800_000)
    slots = [pool.open([A]) for _ in texts]
    for at in range(0, 1000, 20):
        step(pool, [(slot, text[at : at + 20]) for slot, text in zip(slots, texts, strict=True)], 3)
    assert pool.stats()["evicted_groups"] > 0
    for slot in slots[1:]:
        pool.close(slot)
    for _ in range(20):
        step(pool, [(slots[0], [])], 3)
    assert draft(pool, slots[0], k=3) == texts[15][504:507] and pool._validate() is None
