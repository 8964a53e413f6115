# SPDX-License-Identifier: Apache-2.0
"""What a pool drafts and how long it remembers, on examples small enough to check by eye."""

import array
import copy
import inspect
import os
import pickle
import random
import sys
import threading

import numpy as np
import pytest
from pool_oracle import i32, step

import sam_core
from sam_core import BY_PROMPT, reference

A, B, C, D, E = range(5)
RULES = ["oldest", "newest"]


@pytest.fixture(params=[sam_core.Pool, reference.Pool], ids=["c", "twin"])
def Pool(request):
    return request.param


def draft(pool, slot, tokens=(), k=8):
    return step(pool, [(slot, tokens)], k)[0]


# ---- one request ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_worked_example_of_the_article(Pool, rule):
    pool = Pool(rule=rule, sources=("request",))
    slot = pool.open([A, B, C, B, C])
    assert draft(pool, slot) == [B, C]  # BC is the longest earlier suffix, BC followed its first occurrence


@pytest.mark.parametrize(("rule", "expected"), [("oldest", [C, A, B, D]), ("newest", [D, A, B])])
def test_rules_choose_first_or_last_occurrence(Pool, rule, expected):
    pool = Pool(rule=rule)
    slot = pool.open([A, B, C, A, B, D, A])
    assert draft(pool, slot, [B], k=4) == expected


def test_draft_ends_with_the_text(Pool):
    pool = Pool()
    slot = pool.open([A, A, A])
    assert draft(pool, slot) == [A]  # AA stood before, one token follows it: no cyclic continuation


def test_no_draft_without_a_match(Pool):
    pool = Pool()
    empty, new = pool.open([]), pool.open([A, B, C])
    assert step(pool, [(empty, []), (new, [])]) == [[], []]
    assert draft(pool, new, [A]) == [B, C, A]


def test_k_bounds_each_row_and_zero_only_appends(Pool):
    pool = Pool(sources=("request",))
    slots = [pool.open([A, B, C, D]) for _ in range(3)]
    assert step(pool, [(slot, [A]) for slot in slots], i32(0, 1, 3)) == [[], [B], [B, C, D]]
    assert step(pool, [(slot, [B]) for slot in slots], 2) == [[C, D]] * 3


# ---- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_running_sibling_is_seen_in_the_same_call(Pool, rule):
    pool = Pool(rule=rule)
    slow, fast = pool.open([A, B]), pool.open([A, B])
    assert step(pool, [(slow, []), (fast, [C, D, E])]) == [[C, D, E], []]
    assert step(pool, [(slow, [C]), (fast, [A])]) == [[D, E, A], [B, C, D, E, A]]


def test_end_of_a_running_sibling_is_skipped(Pool):
    pool = Pool(rule="newest")
    first, second, third = (pool.open([E, E, E]) for _ in range(3))
    step(pool, [(first, [A, B, C]), (second, [D, B])], k=0)
    # After A B and after B: A B continues with C; D B is longer for a text that ends in D B, but nothing follows it.
    assert step(pool, [(third, [D, B])]) == [[C]]


def test_tie_goes_to_the_request(Pool):
    pool = Pool()
    own, other = pool.open([]), pool.open([])
    step(pool, [(own, [A, B]), (other, [A, C])], k=0)
    assert draft(pool, own, [A]) == [B, A]
    assert draft(pool, other, [D, A]) == [C, D, A]
    assert pool.stats()["by_source"]["request"]["drafts"] == 2


def test_longer_match_of_the_group_wins(Pool):
    pool = Pool()
    own, other = pool.open([]), pool.open([])
    step(pool, [(other, [D, A, C])], k=0)
    assert draft(pool, own, [A, B, D, A]) == [C]
    assert pool.stats()["by_source"]["group"] == {"drafts": 1, "drafted_tokens": 1}


def test_equal_prompts_share_and_others_do_not(Pool):
    pool = Pool()
    pool.step(i32(pool.open([A, B])), i32(C, D), i32(2), 0, np.empty((1, 0), np.int32), i32(0))
    assert draft(pool, pool.open(array.array("i", [A, B]))) == [C, D]
    assert draft(pool, pool.open([A, B, E])) == []
    assert draft(pool, pool.open([A, B], None)) == []
    assert draft(pool, pool.open([A, B], b"name")) == []


def test_named_group_joins_different_prompts(Pool):
    pool = Pool()
    first = pool.open([A, B], b"name")
    draft(pool, first, [C])
    second = pool.open([D, D, B], b"name")
    assert draft(pool, second) == [C]
    assert draft(pool, first, [D]) == [B]  # a prompt of the group is a source too


def test_closed_answers_stay_and_reopened_prompt_finds_them(Pool):
    pool = Pool()
    slot = pool.open([A])
    draft(pool, slot, [B, C, D])
    pool.close(slot)
    assert pool.stats()["slots_open"] == 0 and pool.stats()["groups"] == 1
    assert draft(pool, pool.open([A])) == [B, C, D]


@pytest.mark.parametrize("rule", RULES)
def test_keep_false_is_as_if_it_had_never_been(Pool, rule):
    pool, clean = Pool(rule=rule), Pool(rule=rule)
    prompt = [A, B]
    gone, stays = pool.open(prompt), pool.open(prompt)
    twin_stays = clean.open(prompt)
    answers = [[C, A], [A, B, D]]
    step(pool, [(gone, [C, A, C]), (stays, answers[0])])
    step(pool, [(gone, [E]), (stays, answers[1])])
    for answer in answers:
        step(clean, [(twin_stays, answer)])
    pool.close(gone, keep=False)
    late, twin_late = pool.open(prompt), clean.open(prompt)
    for tokens in ([], [C], [A], [A, B], [D], [E], [B]):
        rows = [(late, tokens), (stays, tokens)]
        assert step(pool, rows) == step(clean, [(twin_late, tokens), (twin_stays, tokens)])
    assert pool.stats()["tokens"] == clean.stats()["tokens"]


def test_group_without_texts_is_freed_at_once(Pool):
    pool = Pool()
    slot = pool.open([A, B])
    draft(pool, slot, [C])
    pool.close(slot, keep=False)
    assert pool.stats()["groups"] == 0
    assert not pool.drop([A, B])


def test_drop_frees_and_says_so(Pool):
    pool = Pool()
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
    request, group = sam_core.Pool(sources=("request",)), sam_core.Pool(sources=("group",))
    slots = [request.open([A, B]) for _ in range(2)]
    assert step(request, [(slots[0], [C]), (slots[1], [])]) == [[], []]
    assert request.stats()["groups"] == 0
    private = group.open([A, A, A], None)
    assert draft(group, private, [A, A]) == []
    assert group.stats()["bytes_used"] == 0 and group.stats()["appended"] == 2


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_memory_returns_to_zero():
    pool = sam_core.Pool()
    assert pool.stats()["bytes_used"] == 0
    rng = random.Random(5)
    prompts = [[rng.randrange(9) for _ in range(20)] for _ in range(40)]
    slots = [pool.open(prompt) for prompt in prompts for _ in range(3)]
    for _ in range(30):
        step(pool, [(slot, [rng.randrange(9)]) for slot in slots])
    assert pool.stats()["bytes_used"] > 100_000 and pool._validate() is None
    for number, slot in enumerate(slots):
        pool.close(slot, keep=number % 2 == 0)
    for prompt in prompts:
        pool.drop(prompt)
    stats = pool.stats()
    assert (stats["bytes_used"], stats["tokens"], stats["groups"]) == (0, 0, 0) and pool._validate() is None


def test_least_recently_closed_group_goes_first():
    def fill(pool, prompt):
        slot = pool.open(prompt)
        draft(pool, slot, [prompt[0]] * 100)
        pool.close(slot)

    alone = sam_core.Pool()
    fill(alone, [A])
    pool = sam_core.Pool(memory_bytes=int(4.5 * alone.stats()["bytes_used"]))
    fill(pool, [A])
    fill(pool, [B])
    pool.close(pool.open([A]))  # A is used again: B is now the oldest
    fill(pool, [C])
    fill(pool, [D])
    assert pool.stats()["evicted_groups"] == 1 and pool._validate() is None
    assert [pool.drop([token]) for token in (A, B, C, D)] == [True, False, True, True]


@pytest.mark.parametrize("rule", RULES)
def test_exhausted_requests_fall_silent_and_others_go_on(rule):
    pool = sam_core.Pool(memory_bytes=60_000, rule=rule)
    slots = [pool.open([A, B, C]) for _ in range(4)]
    early = slots[0]
    silent = drafted_late = 0
    rng = random.Random(1)
    for _ in range(400):
        rows = [(slot, [rng.randrange(4)]) for slot in slots[1:]]
        drafts = step(pool, rows)
        stats = pool.stats()
        assert stats["bytes_used"] <= 60_000
        drafted_late += 0 < silent == stats["exhausted"] < 3 and any(drafts)
        silent = stats["exhausted"]
    assert silent == 3 and stats["appended"] == 1200 and drafted_late > 20
    assert pool._validate() is None
    assert step(pool, [(slot, [A]) for slot in slots[1:]]) == [[]] * 3
    assert draft(pool, early) != []  # what the group had learned before is still there
    late = pool.open([E] * 10_000)
    assert draft(pool, late, [E]) == [] and pool.stats()["exhausted"] == 4
    for slot in [*slots, late]:
        pool.close(slot, keep=slot % 2 == 0)
        assert pool._validate() is None
    pool.drop([A, B, C])
    assert pool.stats()["bytes_used"] == 0


def test_group_whose_only_text_goes_while_a_silent_slot_holds_it():
    prompt, met = [A, B] * 40, 0
    for limit in range(5_000, 20_000, 100):
        pool = sam_core.Pool(memory_bytes=limit)
        first, silent = pool.open(prompt), pool.open(prompt)
        met += pool.stats()["exhausted"] == 1
        pool.close(first, keep=False)
        assert pool._validate() is None
        late = pool.open(prompt)
        assert pool._validate() is None
        if pool.stats()["exhausted"] == 1:
            assert draft(pool, late, k=2) == [A, B]
        pool.close(silent)
    assert met > 10  # there are limits that hold one such slot and not two


def test_no_budget_at_all_drafts_nothing():
    pool = sam_core.Pool(memory_bytes=0)
    slot = pool.open([A, A])
    assert draft(pool, slot, [A, A]) == []
    assert pool.stats()["exhausted"] == 1 and pool.stats()["bytes_used"] == 0


# ---- loops ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 7, 50])
@pytest.mark.parametrize("rule", RULES)
def test_long_repetition_loop_stays_fast(rule, period):
    pool = sam_core.Pool(rule=rule)
    size, members = 34_000, 2
    loop = np.arange(1000, 1000 + period, dtype=np.int32)
    slots = i32(*(pool.open(range(50)) for _ in range(members)))
    out, lengths = np.zeros((members, 3), np.int32), np.zeros(members, np.int32)
    ones = np.ones(members, np.int32)
    for at in range(size):
        pool.step(slots, np.repeat(loop[at % period], members).astype(np.int32), ones, 3, out, lengths)
    # States visited and rotations, at least one a token; a walk up the links would take 10**7.
    assert size * members < pool._work() < 30 * size * members
    assert lengths.tolist() == [min(period, 3)] * members
    assert out[0, 0] == loop[size % period]


@pytest.mark.parametrize("rule", RULES)
def test_loops_that_break_off_and_resume_stay_fast(rule):
    pool = sam_core.Pool(rule=rule)
    text = ([A] * 3000 + [B]) * 10
    draft(pool, pool.open([]), text)
    # Moving states up without the splay tree's double steps takes 2,700 a token.
    assert len(text) < pool._work() < 60 * len(text)


# ---- the Python face ------------------------------------------------------------------------------------------------


def test_plain_buffers_serve_as_well_as_numpy():
    pool = sam_core.Pool()
    slot = pool.open(memoryview(array.array("i", [A, B, C, A])))
    ints = [array.array("i", values) for values in ([slot], [B], [1])]
    out, lengths = array.array("i", [-1] * 4), array.array("i", [-1])
    pool.step(*ints, np.int64(2), memoryview(out).cast("B").cast("i", [1, 4]), lengths)
    assert (out.tolist(), lengths.tolist()) == ([C, A, -1, -1], [2])
    with pytest.raises(ValueError):
        pool.step(*ints, 9, memoryview(out).cast("B").cast("i", [1, 4]), lengths)
    for buffer in [*ints, out, lengths]:
        buffer.append(0)  # nothing is held after a call


def test_signatures_and_constants():
    assert sam_core.BY_PROMPT == reference.BY_PROMPT
    signature = inspect.signature(sam_core.Pool.step)
    assert list(signature.parameters) == ["self", "slots", "tokens", "counts", "k", "out", "lengths"]
    assert inspect.signature(sam_core.Pool.open).parameters["group"].default == BY_PROMPT
    assert inspect.signature(sam_core.Pool).parameters["memory_bytes"].default == 1 << 30
    assert set(sam_core.Pool().stats()) == set(reference.Pool().stats())


def test_import_of_the_pool_does_not_load_numpy():
    code = "import sys, sam_core; sam_core.Pool().open([1]); sys.exit('numpy' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_is_refused(act):
    with pytest.raises(TypeError, match="a Pool can be neither pickled nor copied"):
        act(sam_core.Pool())


def test_child_of_a_fork_has_a_pool_of_its_own():
    pool = sam_core.Pool()
    slot = pool.open([A, B, C, A])
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = draft(pool, slot, [B]) == [C, A, B] and pool._validate() is None
        finally:
            os._exit(0 if same else 1)  # whatever happened, no second pytest goes on from here
    assert os.waitpid(child, 0)[1] == 0
    assert draft(pool, slot) == [B, C, A]


def test_threads_wait_for_each_other():
    pool = sam_core.Pool(sources=("request",))
    rng = random.Random(3)
    texts = [[[rng.randrange(3) for _ in range(400)] for _ in range(50)] for _ in range(4)]
    drafts = [[] for _ in texts]

    def run(number):
        slot = pool.open([])
        for tokens in texts[number]:
            drafts[number].append(draft(pool, slot, tokens))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = sam_core.Pool(sources=("request",))
    for text, got in zip(texts, drafts):
        slot = alone.open([])
        assert got == [draft(alone, slot, tokens) for tokens in text]
    assert pool.stats() == alone.stats() and pool._validate() is None


def test_other_threads_run_during_a_step():
    pool = sam_core.Pool()
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
        arguments = i32(slot), tokens, i32(len(tokens)), 0, np.empty((1, 0), np.int32), i32(0)
        before = turns[0]
        pool.step(*arguments)
        during = turns[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert during >= 3
