# SPDX-License-Identifier: Apache-2.0
"""Random histories of a pool: it must draft what a quadratic search drafts, or may, and stay sound whatever is done to it."""

import random
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_oracle import ALL, Oracle, i32, step, step_tree
from sam_core.options import RULES

import sam_core

TOKENS = st.integers(0, 2)
PROMPTS = [(), (0,), (1, 1, 1), (0, 1, 0, 1, 2)]
KEYS = ["by_prompt", "by_prompt", b"one", b"", None]
ANSWERS = st.lists(TOKENS, max_size=6)
EXACT = ("oldest", "newest", "count")
SOURCES = [ALL, ALL, ("request", "group"), ("request",), ("group",), ("history", "group")]


class PoolMachine(RuleBasedStateMachine):
    @initialize(rule=st.sampled_from(RULES), sources=st.sampled_from(SOURCES))
    def make(self, rule, sources):
        self.c = sam_core.Pool(rule=rule, sources=sources)
        self.empty = self.c.stats()["bytes_used"]
        self.oracle = Oracle(rule, sources)
        self.drafts = 0

    @rule(prompt=st.sampled_from(PROMPTS), key=st.sampled_from(KEYS))
    def start(self, prompt, key):
        self.open(prompt, key)

    def open(self, prompt, key):
        slot = self.c.open(prompt, key)
        assert slot not in self.oracle.slots
        self.oracle.open(slot, prompt, key)

    @precondition(lambda self: b"one" in self.oracle.groups)
    @rule(data=st.data(), lost=st.integers(0, 3), tokens=ANSWERS)
    def resume(self, data, lost, tokens):
        text = data.draw(st.sampled_from(self.oracle.groups[b"one"].texts)).tokens
        self.open((*text[: max(len(text) - lost, 0)], *tokens), b"one")

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data())
    def step(self, data):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.oracle.slots)), unique=True, max_size=5))
        rows = [(slot, data.draw(ANSWERS)) for slot in slots]
        k = data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)) | st.integers(0, 4))
        tree, before = data.draw(st.booleans()), self.drafts_by_source()
        if tree:
            drafts = step_tree(self.c, rows, i32(*k) if isinstance(k, list) else k, width=4)
        else:
            drafts = step(self.c, rows, i32(*k) if isinstance(k, list) else k, width=4)
            drafts = [(draft, range(-1, len(draft) - 1), None) for draft in drafts]
        self.oracle.step(rows, k if isinstance(k, list) else [k] * len(rows))
        by_source = Counter()
        for row, slot in enumerate(slots):
            tokens, parents, _ = drafts[row]
            wanted = k[row] if isinstance(k, list) else k
            assert len(tokens) <= wanted
            self.oracle.check(slot, tokens, parents, wanted, tree)
            self.drafts += bool(tokens)
            if not tree and self.oracle.rule in EXACT:
                expected, source = self.oracle.draft(slot, wanted) if wanted else ([], None)
                assert tokens == expected
                by_source[source] += bool(expected)
        if not tree and self.oracle.rule in ("oldest", "newest"):
            assert self.drafts_by_source() - before == +by_source

    def drafts_by_source(self):
        return Counter({name: counts["drafts"] for name, counts in self.c.stats()["by_source"].items()})

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), tokens=ANSWERS | TOKENS)
    def append(self, data, tokens):
        slot = data.draw(st.sampled_from(sorted(self.oracle.slots)))
        self.c.append(slot, tokens)
        self.oracle.append(slot, [tokens] if isinstance(tokens, int) else tokens)

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), keep=st.booleans())
    def close(self, data, keep):
        slot = data.draw(st.sampled_from(sorted(self.oracle.slots)))
        self.c.close(slot, keep)
        self.oracle.close(slot, keep)

    @rule(key=st.sampled_from([*PROMPTS, b"one", b""]))
    def drop(self, key):
        group = self.oracle.groups.get(key)
        if group is None or not group.open:
            assert self.c.drop(key) == (group is not None)
            self.oracle.groups.pop(key, None)

    @rule(prompt=st.sampled_from(PROMPTS), key=st.sampled_from(KEYS), tokens=ANSWERS)
    def save_and_load(self, prompt, key, tokens):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pool")
            self.c.save(path)
            loaded = sam_core.Pool.load(path)
        expected = self.oracle.saved()
        assert loaded.stats()["groups"] == len(expected.groups) and loaded._validate() is None
        slot = loaded.open(prompt, key)
        expected.open(slot, prompt, key)
        loaded.append(slot, tokens)
        expected.append(slot, tokens)
        drafts = step(loaded, [(slot, [])], 4)
        expected.step([(slot, [])], [4])
        if self.oracle.rule in EXACT:
            assert drafts == [expected.draft(slot, 4)[0]]
        expected.check(slot, drafts[0], range(-1, len(drafts[0]) - 1), 4, False)
        assert loaded._validate() is None

    @invariant()
    def sound(self):
        assert self.c._validate() is None

    @invariant()
    def counted(self):
        stats, oracle = self.c.stats(), self.oracle
        assert stats["slots_open"] == len(oracle.slots)
        assert stats["groups"] == len(oracle.groups)
        groups = oracle.groups.values() if "history" in oracle.sources else []
        assert stats["history_texts"] == sum(group.past for group in groups)
        assert stats["drafts"] == self.drafts

    def teardown(self):
        if not hasattr(self, "c"):
            return
        for slot in self.oracle.slots:
            self.c.close(slot)
        for key in [*PROMPTS, b"one", b""]:
            self.c.drop(key)
        stats = self.c.stats()
        assert [stats[name] for name in ("bytes_used", "groups", "tokens", "slots_open")] == [self.empty, 0, 0, 0]
        assert stats["history_texts"] == stats["history_tokens"] == 0
        assert self.c._validate() is None


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("rule", ["oldest", "newest", "count", "suffix", "blend"])
def test_every_rule_drafts_trees_of_known_tokens_within_a_tight_budget(rule, tmp_path):
    """What cannot be compared with the search: trees, all rules, groups that come and go for lack of memory."""
    rng = random.Random(rule)
    least = sam_core.Pool(rule=rule).stats()["bytes_used"]
    counted = dict.fromkeys(("evicted_groups", "evicted_history", "exhausted"), 0)
    nodes = branches = 0
    for more in (8_000, 20_000, 60_000, 200_000):
        pool = sam_core.Pool(memory_bytes=least + more, rule=rule)
        slots = []
        for turn in range(300):
            act = rng.random()
            if act < 0.15 and len(slots) < 12:
                slots.append(pool.open([rng.randrange(9)] * 4 + [3], rng.choice(["by_prompt", b"name", None])))
            elif act < 0.25 and slots:
                pool.close(slots.pop(rng.randrange(len(slots))), rng.random() < 0.8)
            elif slots:
                rows = [(slot, [rng.randrange(9) for _ in range(rng.randrange(5))]) for slot in slots]
                for tokens, parents, _ in step_tree(pool, rows, 6, 6):
                    assert all(0 <= token < 9 for token in tokens)
                    nodes += len(tokens)
                    branches += len(parents) > len(set(parents))
            if turn % 10 == 0:
                assert pool._validate() is None and pool.stats()["bytes_used"] <= least + more
            if turn == 150:
                pool.save(tmp_path / "pool")
                assert sam_core.Pool.load(tmp_path / "pool", least + more // 2)._validate() is None
        for name in counted:
            counted[name] += pool.stats()[name]
    assert nodes > 1000 and branches and all(counted.values()), (nodes, branches, counted)
