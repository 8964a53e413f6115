# SPDX-License-Identifier: Apache-2.0
"""The C and its plain-Python twin: the same calls give the same drafts, scores, counters and tables, bit for bit."""

import random

import numpy as np
import pytest
from pool_oracle import i32
from sam_core.corpus import build_corpus
from sam_core.options import RULES
from sam_core.reference.automaton import Index
from sam_core.reference.rules import MAX_DRAFT

import sam_core
from sam_core import reference

SOURCES = [("request", "group", "history", "common"), ("request", "group"), ("group", "history"), ("request", "common")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Path of a corpus of random texts over four tokens, long enough that not all followers are found."""
    path = tmp_path_factory.mktemp("corpus") / "texts.corpus"
    rng = random.Random(1)
    build_corpus([[rng.randrange(4) for _ in range(rng.randrange(1, 60))] for _ in range(40)], path)
    return path


class Both:
    """Two pools that get the same calls; each answer is compared. `early`: three steps of four are."""

    def __init__(self, tree=False, early=False, **arguments):
        self.tree, self.early, self.turn = tree, early, 0
        self.c, self.twin = sam_core.Pool(**arguments), reference.Pool(**arguments)

    def _same(self, call):
        answers = call(self.c), call(self.twin)
        assert answers[0] == answers[1]
        return answers[1]

    def open(self, prompt, group="by_prompt"):
        return self._same(lambda pool: pool.open(prompt, group))

    def prompt_size(self, slot):
        return self._same(lambda pool: pool.prompt_size(slot))

    def append(self, slot, tokens):
        self._same(lambda pool: pool.append(slot, tokens))

    def close(self, slot, keep):
        self._same(lambda pool: pool.close(slot, keep))

    def step(self, rows, k):
        """Append rows, a list of (slot, tokens), and return the drafts as lists of tokens."""
        slots, counts = i32(*(slot for slot, _ in rows)), i32(*(len(tokens) for _, tokens in rows))
        tokens, shape = i32(*(token for _, tokens in rows for token in tokens)), (len(rows), MAX_DRAFT)
        starts = None
        if len(tokens) % 2:  # a table whose rows lie apart, and what is not new in it is no token
            starts = np.arange(len(rows), dtype=np.int32) % 3
            table = np.full((len(rows) + 1, 2 + counts.max() + 5), -7, np.int32)[:, : 2 + counts.max()]
            for row, (start, (_, new)) in enumerate(zip(starts, rows, strict=True)):
                table[row, start : start + len(new)] = new
            tokens = table
        self.turn += 1
        early = self.early and self.turn % 4 > 0

        def call(pool):
            out, parents = np.full(shape, -7, np.int32), np.full(shape, -7, np.int32)
            lengths, scores = np.full(len(rows), -7, np.int32), np.full(shape, -7, np.float32)
            sources, matches = np.full(shape, -7, np.int32), np.full(shape, -7, np.int32)
            given = {"sources": sources, "match_lengths": matches, "early": early}
            pool.step(slots, tokens, counts, k, out, lengths, scores, parents if self.tree else None, starts, **given)
            return [array.tolist() for array in (lengths, out, parents, scores, sources, matches)]

        lengths, out, *_ = self._same(call)
        if self.turn % 4 == 1:
            self._same(lambda pool: pool.catch_up())
        return [draft[:size] for draft, size in zip(out, lengths)]

    def compare(self, tmp_path):
        """Counters, and the learned tables: a saved pool holds them as they are."""
        self._same(lambda pool: pool.catch_up())
        assert self.c._validate() is None
        assert self.c.stats() | {"bytes_used": 0} == self.twin.stats()
        self.c.save(tmp_path / "pool")
        assert self.twin.learned().tobytes() in (tmp_path / "pool").read_bytes()


def live(both, rng, steps, vocabulary):
    """A random life: requests that repeat themselves and each other, and at times follow their drafts.

    Requests of a named group may resume what another has ended with, at times without its last tokens.
    """
    prompts = [[rng.randrange(vocabulary) for _ in range(size)] for size in (0, 2, 5)]
    said, drafts, names, ended = {}, {}, {}, []

    def answer(slot):
        drafted, draw = drafts.pop(slot, []), rng.random()
        if draw < 0.4:
            tokens = drafted[: rng.randrange(1, 5)]
        elif draw < 0.8:
            other = rng.choice(list(said.values()))
            at = rng.randrange(len(other) + 1)
            tokens = other[at : at + rng.randrange(12)]
        else:
            tokens = []
        tokens = tokens + [rng.randrange(vocabulary)] * rng.randrange(3)
        said[slot] += tokens
        return tokens

    for step in range(steps):
        draw = rng.random()
        if draw < 0.1 or not said:
            prompt, name = rng.choice(prompts), rng.choice(("by_prompt", "by_prompt", b"name", None))
            if name == b"name" and ended and rng.random() < 0.7:
                text = rng.choice(ended[-3:])
                prompt = text[: len(text) - rng.choice((0, 0, 1, 4, 40))] + rng.choice(prompts)
            slot = both.open(prompt, name)
            assert both.prompt_size(slot) <= len(prompt)
            said[slot], names[slot] = list(prompt), name
        elif draw < 0.15:
            slot = rng.choice(list(said))
            both.close(slot, rng.random() < 0.7)
            ended += [said[slot]] if names[slot] == b"name" else []
            del said[slot]
            drafts.pop(slot, None)
        elif draw < 0.25:
            slot = rng.choice(list(said))
            both.append(slot, answer(slot))
        else:
            slots = rng.sample(list(said), min(len(said), 3))
            rows = [(slot, answer(slot)) for slot in slots]
            k = rng.choice((0, 1, 3, 8, MAX_DRAFT if step % 10 == 0 else 8))
            drafts.update(zip(slots, both.step(rows, k)))


@pytest.mark.parametrize("early", [False, True], ids=["", "early"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", RULES)
def test_random_lives(corpus, tmp_path, rule, tree, early):
    rng = random.Random(f"{rule} {tree}")
    for number in range(6):
        both = Both(
            tree,
            early,
            rule=rule,
            sources=SOURCES[number % 4],
            corpus=corpus if number % 2 else None,
            min_prob=(0, 0.02, 0.3)[number % 3],
            vocab_size=29 if number == 4 else None,
        )
        live(both, rng, 80, (2, 3, 30)[number // 2])
        both.compare(tmp_path)


@pytest.mark.parametrize("early", [False, True], ids=["", "early"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", RULES)
def test_loops_longer_than_a_match(tmp_path, rule, tree, early):
    """Matches of more than MAX_MATCH tokens, of one text and of its sibling, that break off and go on."""
    both = Both(tree, early, rule=rule)
    first, second = both.open([7, 8]), both.open([7, 8])
    text = [*([1, 2, 3] * 60), 4, *([1, 2, 3] * 70), *([4] * 150), *([1, 2, 3] * 50)]
    for at, token in enumerate(text):
        rows = [(first, [token]), (second, [text[at - 20 if at < 400 else at - 19]] if at > 20 else [])]
        both.step(rows, 8 if at % 37 == 0 else 0)
    both.compare(tmp_path)


@pytest.mark.parametrize("token", [0, 2**31 - 1])
@pytest.mark.parametrize("rule", RULES)
def test_extreme_tokens(tmp_path, rule, token):
    both = Both(rule=rule)
    slot = both.open([token, token, 5])
    for _ in range(4):
        assert both.step([(slot, [token])], 4)[0][0] in (token, 5)
    both.compare(tmp_path)


def test_slot_numbers_wait_before_they_are_used_again():
    both = Both(rule="newest")
    for _ in range(150):
        both.close(both.open([1, 2], None), keep=True)


def placed(kind, appended, texts, string):
    """By definition: marks, best and place of what followed a string, in texts of which some came as older ones."""
    counts, best, place = {}, -1, None
    for text, position, older in appended:
        if position < len(string) or texts[text][position - len(string) : position] != string:
            continue
        same = place is not None and place[0] == text
        takes = place is None or (older and not same if kind == "oldest" else same or not older)
        token = texts[text][position]
        counts[token] = counts.get(token, 0) + 1
        if counts[token] + takes > counts.get(best, 0):
            best = token
        place = (text, position) if takes else place
    return sum(counts.values()), best, place


@pytest.mark.parametrize("kind", ["oldest", "newest", "counted"])
def test_older_texts_in_the_twin(kind):
    """An older text that is inserted after newer ones takes no place of theirs; the oldest rule's first is its."""
    rng = random.Random(kind)
    for _ in range(60):
        texts, appended, frequent = [[], [], []], [], []
        index = Index(kind, texts)
        states = [index.root] * 3
        for turn in range(40):
            number = rng.choice((0, 1 + turn // 20))  # text 0 grows while the others come in turn
            texts[number].append(token := rng.randrange(3))
            older, position = number > 0, len(texts[number]) - 1
            states[number] = index.append(states[number], number, position, older)
            appended.append((number, position, older))
            count = sum(texts[text][at] == token for text, at, _ in appended)
            frequent = [entry for entry in frequent if entry[0] != token]
            frequent.insert(sum(entry[1] + older > count for entry in frequent), (token, count))
        assert index.frequent == frequent
        for text, end, _ in appended:
            for start in range(max(0, end - 8), end + 1):
                string, state = texts[text][start : end + 1], index.root
                for token in string:
                    state = state.edges[token]
                marks, best, place = placed(kind, appended, texts, string)
                assert (state.marks, state.place) == (marks, place)
                assert not marks or kind == "oldest" or state.best == best


@pytest.mark.parametrize("early", [False, True], ids=["", "early"])
@pytest.mark.parametrize("rule", ["newest", "blend"])
def test_texts_that_are_indexed_over_many_steps(rule, early):
    """Long prompts and a long history: each call indexes a part, in the same order."""
    rng, both = random.Random(3), Both(early=early, rule=rule)
    prompt = [rng.randrange(40) for _ in range(4000)]
    answers = [[rng.randrange(40) for _ in range(2500)] for _ in range(4)]
    for answer in answers:
        slot = both.open(prompt)
        both.append(slot, answer)
        both.close(slot, True)
    slots = [both.open(prompt) for _ in range(3)]
    drafts = []
    for at in range(30):
        rows = [(slot, answers[number][at * 2 : at * 2 + 2]) for number, slot in enumerate(slots)]
        drafts.append(both.step(rows, 4 if at % 5 else 0))
    assert drafts[1][1:] == [[], []] and all(drafts[-1])  # there is work for one prompt a step


def test_early_steps_of_many_rows(tmp_path):
    both = Both(early=True)
    slots = [both.open([number % 9, 2, 3, number % 9]) for number in range(256)]
    drafts = [both.step([(slot, [2]) for slot in slots], 4), both.step([(slot, [3]) for slot in slots], 4)]
    both.compare(tmp_path)
    assert not any(drafts[0]) and all(drafts[1])
