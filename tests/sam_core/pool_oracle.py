# SPDX-License-Identifier: Apache-2.0
"""Three drafting rules by quadratic search over the texts, without any automaton; and NumPy-shaped calls of step."""

import copy

import numpy as np

ALL = ("request", "group", "history")


def i32(*values):
    return np.array(values, dtype=np.int32)


def step(pool, rows, k=8, width=8):
    """Append rows, a list of (slot, tokens), in one call; return the drafts as lists."""
    slots = i32(*(slot for slot, _ in rows))
    tokens = i32(*(token for _, tokens in rows for token in tokens))
    counts = i32(*(len(tokens) for _, tokens in rows))
    out = np.full((len(rows), width), -7, dtype=np.int32)
    lengths = np.full(len(rows), -7, dtype=np.int32)
    pool.step(slots, tokens, counts, k, out, lengths)
    assert all((out[row, length:] == -7).all() for row, length in enumerate(lengths)), "wrote behind a draft"
    return [out[row, :length].tolist() for row, length in enumerate(lengths)]


def step_tree(pool, rows, k=8, width=8):
    """The same for trees; return (tokens, parents, scores) of each row, after checking that they form trees."""
    slots = i32(*(slot for slot, _ in rows))
    tokens = i32(*(token for _, tokens in rows for token in tokens))
    counts = i32(*(len(tokens) for _, tokens in rows))
    out, parents = (np.full((len(rows), width), -7, dtype=np.int32) for _ in range(2))
    scores = np.full((len(rows), width), -7, dtype=np.float32)
    lengths = np.zeros(len(rows), dtype=np.int32)
    pool.step(slots, tokens, counts, k, out, lengths, scores=scores, parents=parents)
    trees = []
    for row, length in enumerate(lengths):
        assert all((array[row, length:] == -7).all() for array in (out, parents, scores)), "wrote behind a draft"
        tree = [array[row, :length].tolist() for array in (out, parents, scores)]
        for node, (parent, score) in enumerate(zip(tree[1], tree[2], strict=True)):
            assert -1 <= parent < node and 0 < score <= (1 if parent < 0 else tree[2][parent])
        assert len(set(zip(tree[0], tree[1], strict=True))) == length, "two equal nodes with one parent"
        trees.append(tree)
    return trees


def common_suffix(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n


class Text:
    def __init__(self, prompt, group):
        self.tokens = list(prompt)
        self.prompt_size = len(prompt)
        self.group = group
        self.open = True


class Group:
    """Texts in order of opening; `following` are (text, position) of each token that follows an occurrence, in order of
    arrival, None while the index is stale."""

    def __init__(self, by_prompt):
        self.by_prompt = by_prompt
        self.open = self.past = 0
        self.texts = []
        self.following = None

    def refresh(self):
        if self.following is None:
            self.following = []
            for number, text in enumerate(self.texts):
                start = text.prompt_size if self.by_prompt and number else 0
                self.following += [(text, position) for position in range(start, len(text.tokens))]

    def enter(self, text):
        self.texts.append(text)
        self.open += 1
        if len(self.texts) == 1:
            self.following = None
            self.refresh()
        elif self.following is not None and not self.by_prompt:
            self.following += [(text, position) for position in range(len(text.tokens))]


class Oracle:
    """Texts and groups of a pool with all the memory it wants; slots are numbered by the caller."""

    def __init__(self, rule, sources):
        self.rule, self.sources = rule, sources
        self.slots, self.groups = {}, {}

    def open(self, slot, prompt, key):
        group = None
        if "group" in self.sources and key is not None:
            by_prompt = key == "by_prompt"
            group = self.groups.setdefault(tuple(prompt) if by_prompt else key, Group(by_prompt))
        self.slots[slot] = Text(prompt, group)
        if group is not None:
            group.enter(self.slots[slot])

    def append(self, slot, tokens):
        text = self.slots[slot]
        for token in tokens:
            if text.group is not None and text.group.following is not None:
                text.group.following.append((text, len(text.tokens)))
            text.tokens.append(token)

    def close(self, slot, keep):
        text = self.slots.pop(slot)
        group = text.group
        if group is None:
            return
        text.open = False
        group.open -= 1
        if not keep:
            group.texts.remove(text)
            group.following = None
        if not group.open:
            group.past = len(group.texts)
        if not group.open and not group.texts:
            self.groups = {key: other for key, other in self.groups.items() if other is not group}

    def saved(self):
        """An oracle of the pool that is loaded from what this one saves."""
        loaded = Oracle(self.rule, self.sources)
        for key, group in self.groups.items():
            kept = [text for text in group.texts if not text.open]
            kept = [text for text in kept if not group.by_prompt or len(text.tokens) > text.prompt_size]
            if kept:
                new = loaded.groups[key] = Group(group.by_prompt)
                for text in kept:
                    new.texts.append(copy.copy(text))
                    new.texts[-1].group = new
                new.past = len(kept)
        return loaded

    def _sources(self, text):
        """(following, texts) of each source that the slot has, in the order that decides a tie."""
        if "request" in self.sources:
            yield "request", [(text, position) for position in range(len(text.tokens))], [text]
        if text.group is not None:
            text.group.refresh()
            yield "group", text.group.following, text.group.texts

    def draft(self, slot, k):
        """The draft and the source it comes from, None if that is not told."""
        text = self.slots[slot]
        return self._count(text, k) if self.rule == "count" else self._copy(text, k)

    def _copy(self, text, k):
        longest, place, source = 0, None, None
        for name, following, _ in self._sources(text):
            lengths = [common_suffix(text.tokens, other.tokens[:position]) for other, position in following]
            if max(lengths, default=0) > longest:
                longest = max(lengths)
                places = [at for at, length in zip(following, lengths, strict=True) if length == longest]
                place, source = places[0 if self.rule == "oldest" else -1], name
        if place is None:
            return [], None
        if source == "group" and "history" in self.sources:
            source = "history" if place[0] in text.group.texts[: text.group.past] else "group"
        return place[0].tokens[place[1] : place[1] + k], source

    def _count(self, text, k):
        sources, tokens, drafted = list(self._sources(text)), list(text.tokens), []
        lengths = [
            max((common_suffix(tokens, other.tokens[:position]) for other, position in following), default=0)
            for _, following, _ in sources
        ]
        while len(drafted) < k and any(lengths):
            number = lengths.index(max(lengths))
            token = most_frequent(sources[number][1], tokens, lengths[number])
            if token is None:
                break
            drafted.append(token)
            tokens.append(token)
            for i, (_, _, texts) in enumerate(sources):
                if lengths[i]:
                    lengths[i] = longest_known(texts, tokens, lengths[i] + 1)
        return drafted, None


def most_frequent(following, tokens, length):
    """The token that followed the longest suffix, of at most `length` tokens, that any token followed."""
    for size in range(length, 0, -1):
        after = [other.tokens[at] for other, at in following if other.tokens[max(at - size, 0) : at] == tokens[-size:]]
        if after:
            most = max(after.count(token) for token in after)
            return next(token for token in reversed(after) if after.count(token) == most)
    return None


def longest_known(texts, tokens, most):
    """The length of the longest suffix, of at most `most` tokens, that stands in a text."""
    for size in range(most, 0, -1):
        wanted = tokens[-size:]
        if any(t.tokens[at : at + size] == wanted for t in texts for at in range(len(t.tokens) - size + 1)):
            return size
    return 0
