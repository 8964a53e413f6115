# SPDX-License-Identifier: Apache-2.0
"""C and its plain-Python twin return the same drafts, scores, counters and tables for the same calls, bit for bit."""

import atexit
import functools
import random
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
import twin
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sam_core.corpus import build_corpus
from sam_core.options import RULES
from steps import ALL, drafts, i32
from twin.rules import MAX_DRAFT

import sam_core

SOURCES = [ALL, ALL, ("request", "group"), ("request",), ("group", "history"), ("request", "common"), ("common",)]
PROMPTS = [(), (0,), (1, 1, 1), (0, 1, 0, 1, 2)]
NAMES = [*PROMPTS, b"one", b""]
# Keys of groups, and whether their slots are isolated.
KEYS = [*(["by_prompt", False],) * 2, [b"one", False], [b"", False], [None, False], [None, True], [b"apart", True]]
TOKENS = st.lists(st.sampled_from((0, 1, 2, 2**31 - 1)), max_size=6)


@functools.cache
def corpus():
    """Path of a corpus of random texts over four tokens, long enough that not all successors are found."""
    path, rng = Path(tempfile.mkdtemp()) / "texts.corpus", random.Random(1)
    build_corpus([[rng.randrange(4) for _ in range(rng.randrange(1, 60))] for _ in range(40)], path)
    atexit.register(shutil.rmtree, path.parent)
    return path


class Both:
    """Two pools that get the same calls; each answer is compared."""

    def __init__(self, **arguments):
        self.c, self.twin = sam_core.Pool(**arguments), twin.Pool(**arguments)

    def same(self, name, *arguments):
        answers = [getattr(pool, name)(*arguments) for pool in (self.c, self.twin)]
        assert answers[0] == answers[1]
        return answers[1]

    def step(self, rows, k, index_later=False):
        """Append rows, a list of (slot, tokens), and return the drafts as lists of tokens."""
        answers = [drafts(pool, rows, k, MAX_DRAFT, index_later) for pool in (self.c, self.twin)]
        assert answers[0] == answers[1]
        return [draft[0] for draft in answers[0]]

    def compare(self):
        """Compare the counters and the learned tables, which a saved pool holds as they are."""
        self.same("catch_up")
        assert self.c._validate() is None
        stats = self.c.stats()
        assert self.twin.stats() == {name: stats[name] for name in self.twin.stats()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pool")
            self.c.save(path)
            assert self.twin.model.learned().tobytes() in path.read_bytes()
            loaded = sam_core.Pool.load(path)
        assert loaded._validate() is None and loaded.stats()["groups"] <= stats["groups"]


class PoolMachine(RuleBasedStateMachine):
    """C and twin give the same for any sequence of calls, which leaves a sound pool and, in the end, an empty one.

    Requests repeat themselves and each other, and at times follow their drafts. A request of a named group may
    continue a text of the group that has ended, also without its last tokens.
    """

    @initialize(
        rule=st.sampled_from(RULES),
        sources=st.sampled_from(SOURCES),
        with_corpus=st.booleans(),
        min_prob=st.sampled_from((0, 0.02, 0.3)),
        vocab_size=st.sampled_from((None, None, 2)),
    )
    def make(self, rule, sources, with_corpus, min_prob, vocab_size):
        more = {"corpus": corpus()} if with_corpus else {"vocab_size": vocab_size}
        self.both = Both(rule=rule, sources=sources, min_prob=min_prob, **more)
        self.empty = self.both.c.stats()["bytes_used"]
        self.texts, self.keys, self.drafts = {}, {}, {}  # by slot
        self.ended = []  # texts of the group b"one"

    @rule(prompt=st.sampled_from(PROMPTS), key=st.sampled_from(KEYS))
    def start(self, prompt, key):
        slot = self.both.same("open", prompt, *key)
        assert slot not in self.texts and self.both.same("prompt_size", slot) <= len(prompt)
        self.texts[slot], self.drafts[slot] = list(prompt), []
        self.keys[slot] = prompt if key[0] == "by_prompt" else key[0]

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), lost=st.integers(0, 40), tokens=TOKENS)
    def resume(self, data, lost, tokens):
        text = data.draw(st.sampled_from(self.ended))
        self.start((*text[: max(len(text) - lost, 0)], *tokens), [b"one", False])

    def answer(self, data, slot):
        """Extend a slot's text by part of its draft, of another text or nothing, plus random tokens; return them."""
        texts = st.sampled_from([*self.texts.values()])
        others = texts.flatmap(lambda text: st.integers(0, len(text)).map(lambda n: text[n:]))
        said = data.draw(st.just(self.drafts[slot]) | others | st.just([]))[: data.draw(st.integers(1, 9))]
        new = said + data.draw(TOKENS)
        self.texts[slot] += new
        return new

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), index_later=st.booleans())
    def step(self, data, index_later):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.texts)), unique=True, max_size=4))
        rows = [(slot, self.answer(data, slot)) for slot in slots]
        k = data.draw(st.integers(0, 8) | st.just(MAX_DRAFT) | st.none())
        k = i32(*(data.draw(st.integers(0, 4)) for _ in slots)) if k is None else k
        self.drafts.update(zip(slots, self.both.step(rows, k, index_later), strict=True))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def append(self, data):
        slot = data.draw(st.sampled_from(sorted(self.texts)))
        self.both.same("append", slot, self.answer(data, slot))

    @rule()
    def catch_up(self):
        self.both.same("catch_up")

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), keep=st.booleans())
    def close(self, data, keep):
        slot = data.draw(st.sampled_from(sorted(self.texts)))
        self.both.same("close", slot, keep)
        self.ended += [self.texts[slot]] if self.keys[slot] == b"one" else []
        del self.texts[slot], self.keys[slot], self.drafts[slot]

    @rule(key=st.sampled_from(NAMES))
    def drop(self, key):
        if key not in self.keys.values():
            self.both.same("drop", key)

    @invariant()
    def sound(self):
        assert self.both.c._validate() is None

    def teardown(self):
        if not hasattr(self, "both"):
            return
        self.both.compare()
        for slot in self.texts:
            self.both.same("close", slot)
        for key in NAMES:
            self.both.same("drop", key)
        stats = self.both.c.stats()
        assert [stats[name] for name in ("bytes_used", "groups", "tokens", "slots_open")] == [self.empty, 0, 0, 0]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, phases=[Phase.generate])


@pytest.mark.parametrize("rule", RULES)
def test_loops_longer_than_a_match(rule):
    """Matches in the same text and in its sibling grow beyond MAX_MATCH tokens, break off and resume."""
    both = Both(rule=rule)
    first, second = both.same("open", [7, 8]), both.same("open", [7, 8])
    text = [*([1, 2, 3] * 60), 4, *([1, 2, 3] * 70), *([4] * 150), *([1, 2, 3] * 50)]
    for at, token in enumerate(text):
        rows = [(first, [token]), (second, [text[at - 20 if at < 400 else at - 19]] if at > 20 else [])]
        both.step(rows, 8 if at % 37 == 0 else 0, index_later=at % 4 > 0)
    both.compare()


def test_slot_numbers_wait_before_they_are_used_again():
    both = Both(rule="newest")
    for _ in range(150):
        both.same("close", both.same("open", [1, 2], None))


@pytest.mark.parametrize("index_later", [False, True], ids=["", "index_later"])
@pytest.mark.parametrize("rule", ["newest", "blend"])
def test_texts_that_are_indexed_over_many_steps(rule, index_later):
    """Prompts and history are long, so each call indexes a part of them. C and twin use the same order."""
    rng, both = random.Random(3), Both(rule=rule)
    prompt = [rng.randrange(40) for _ in range(4000)]
    answers = [[rng.randrange(40) for _ in range(2500)] for _ in range(4)]
    for answer in answers:
        slot = both.same("open", prompt)
        both.same("append", slot, answer)
        both.same("close", slot)
    slots = [both.same("open", prompt) for _ in range(3)]
    found = []
    for at in range(30):
        rows = [(slot, answers[number][at * 2 : at * 2 + 2]) for number, slot in enumerate(slots)]
        found.append(both.step(rows, 4 if at % 5 else 0, index_later and at % 4 > 0))
    assert found[1][1:] == [[], []] and all(found[-1])  # there is work for one prompt a step


@pytest.mark.parametrize("rule", RULES)
def test_repetitive_texts_older_than_what_was_indexed(rule):
    """Closed texts are indexed after those of open slots, but count as older."""
    rng, both = random.Random(1), Both(rule=rule)
    for turn in range(40):
        texts = [[rng.randrange(40 if turn % 4 else 3) for _ in range(rng.randrange(25))] for _ in range(6)]
        for text in texts[:4]:
            slot = both.same("open", [9, turn])
            both.same("append", slot, text)
            both.same("close", slot)
        slots = [both.same("open", [9, turn]) for _ in range(2)]
        for at in range(12):
            both.step([(slot, text[at * 2 : at * 2 + 2]) for slot, text in zip(slots, texts[4:], strict=True)], 8)
        for slot in slots:
            both.same("close", slot)
    both.compare()


@pytest.mark.parametrize("little", [False, True], ids=["", "little_memory"])
@pytest.mark.parametrize("rule", ["newest", "blend"])
def test_large_steps_by_several_threads(rule, little):
    """Each row's draft equals the twin's. With little memory, which the twin ignores, drafts are equal for any number
    of threads."""
    rng, pools, found = random.Random(1), [] if little else [twin.Pool(rule=rule)], 0
    memory = sam_core.Pool(rule=rule).stats()["bytes_used"] + (1_000_000 if little else 1 << 30)
    for threads in (1, 2, 6):  # with 6 each lesson has a helper
        pools.append(sam_core.Pool(rule=rule, memory_bytes=memory))
        pools[-1].num_threads = threads

    def open_slot():
        size = rng.choice([0] * 19 + [1500 if little else 300])
        prompt = [100 + rng.randrange(100), 1, *(at * at % 11 + at % 50 for at in range(size))]
        key = rng.choice(["by_prompt", "by_prompt", b"name", None])
        (slot,) = {pool.open(prompt, key) for pool in pools}
        return slot

    slots = [open_slot() for _ in range(280)]
    for turn in range(24 if little else 7):
        chosen = rng.sample(slots, 280 if turn % 4 < 3 else 200)
        rows = [(slot, [rng.randrange(7) for _ in range(rng.randrange(1 if turn == 5 else 6))]) for slot in chosen]
        k = i32(*(4 * (rng.random() < (0.1 if turn % 5 == 4 else 0.95)) for _ in rows))
        answers = [drafts(pool, rows, k, 4, turn % 2 > 0) for pool in pools]
        assert all(answer == answers[0] for answer in answers)
        found += sum(len(draft[0]) for draft in answers[0])
        for at in rng.sample(range(280), rng.choice([0, 0, 40])):
            keep = rng.random() > 0.3
            for pool in pools:
                pool.close(slots[at], keep)
            slots[at] = open_slot()
        for pool in pools if turn % 7 == 6 else []:
            pool.catch_up()
    stats = [pool.stats() for pool in pools]
    assert all(each == stats[-1] for each in stats[-3:]) and stats[0].items() <= stats[-1].items()
    assert all(pool._validate() is None for pool in pools[-3:]) and found > 1000
    assert not little or stats[0]["exhausted"] + stats[0]["evicted_groups"] > 0
