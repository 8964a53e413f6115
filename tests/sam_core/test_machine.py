# SPDX-License-Identifier: Apache-2.0
"""Random histories of a pool: the C pool, its plain-Python twin and a quadratic search must draft the same."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pool_oracle import Oracle, i32, step

import sam_core
from sam_core import reference

TOKENS = st.integers(0, 2)
PROMPTS = [(), (0,), (1, 1, 1), (0, 1, 0, 1, 2)]
KEYS = ["by_prompt", "by_prompt", b"one", b"", None]
ANSWERS = st.lists(TOKENS, max_size=6)


class PoolMachine(RuleBasedStateMachine):
    @initialize(
        rule=st.sampled_from(["newest", "oldest"]),
        sources=st.sampled_from([("request", "group"), ("request",), ("group",)]),
    )
    def make(self, rule, sources):
        self.c = sam_core.Pool(rule=rule, sources=sources)
        self.twin = reference.Pool(rule=rule, sources=sources)
        self.oracle = Oracle(rule, sources)
        self.keys = set()

    @rule(prompt=st.sampled_from(PROMPTS), key=st.sampled_from(KEYS))
    def open(self, prompt, key):
        slot = self.c.open(prompt, key)
        assert self.twin.open(prompt, key) == slot
        assert slot not in self.oracle.slots
        self.oracle.open(slot, prompt, key)

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data())
    def step(self, data):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.oracle.slots)), unique=True, max_size=5))
        rows = [(slot, data.draw(ANSWERS)) for slot in slots]
        k = data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)) | st.integers(0, 4))
        given = i32(*k) if isinstance(k, list) else k
        drafts = step(self.c, rows, given, width=4)
        assert step(self.twin, rows, given, width=4) == drafts
        for slot, tokens in rows:
            self.oracle.append(slot, tokens)
        for row, slot in enumerate(slots):
            assert drafts[row] == self.oracle.draft(slot, k[row] if isinstance(k, list) else k)

    @precondition(lambda self: self.oracle.slots)
    @rule(data=st.data(), keep=st.booleans())
    def close(self, data, keep):
        slot = data.draw(st.sampled_from(sorted(self.oracle.slots)))
        self.c.close(slot, keep)
        self.twin.close(slot, keep)
        self.oracle.close(slot, keep)

    @rule(key=st.sampled_from([*PROMPTS, b"one", b""]))
    def drop(self, key):
        group = self.oracle.groups.get(key)
        if group is None or not group.open:
            assert self.c.drop(key) == self.twin.drop(key) == (group is not None)
            self.oracle.groups.pop(key, None)

    @invariant()
    def sound(self):
        assert self.c._validate() is None

    @invariant()
    def counted(self):
        stats = self.c.stats()
        assert stats | {"bytes_used": 0} == self.twin.stats()
        assert stats["slots_open"] == len(self.oracle.slots)
        assert stats["groups"] == len(self.oracle.groups)

    def teardown(self):
        if not hasattr(self, "c"):
            return
        for slot in self.oracle.slots:
            self.c.close(slot)
        for key in [*PROMPTS, b"one", b""]:
            self.c.drop(key)
        stats = self.c.stats()
        assert (stats["bytes_used"], stats["groups"], stats["tokens"], stats["slots_open"]) == (0, 0, 0, 0)
        assert self.c._validate() is None


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
