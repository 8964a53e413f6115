# SPDX-License-Identifier: Apache-2.0
"""Drafting rules by quadratic search over the texts, without any automaton; and NumPy-shaped calls of step."""

import copy
import os

import numpy as np

ALL = ("request", "group", "history", "common")


def i32(*values):
    return np.array(values, dtype=np.int32)


def step(pool, rows, k=8, width=8, early=False):
    """Append rows, a list of (slot, tokens), in one call; return the drafts as lists."""
    slots = i32(*(slot for slot, _ in rows))
    tokens = i32(*(token for _, tokens in rows for token in tokens))
    counts = i32(*(len(tokens) for _, tokens in rows))
    out = np.full((len(rows), width), -7, dtype=np.int32)
    lengths = np.full(len(rows), -7, dtype=np.int32)
    pool.step(slots, tokens, counts, k, out, lengths, early=early)
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
        self.removed = False
        self.fed = None  # tokens that the group's index has; None: the text is not in it
        self.own = 0  # tokens that the request's index has


class Group:
    """Texts in order of opening.

    following: (text, position, older) of each token in the index, in order of arrival; None while there is no index.
    in_order: the same, those of an older text before all that was there.
    """

    def __init__(self, by_prompt, alone):
        self.by_prompt, self.alone = by_prompt, alone
        self.open = self.past = 0
        self.texts, self.due, self.next_past = [], [], 0
        self.following = self.in_order = None

    def feed(self, text, older=False):
        start = text.fed
        if start is None:
            start = len(self.prompt or []) if text.tokens[: len(self.prompt or [])] == self.prompt else 0
        if self.prompt is None:
            self.prompt = text.tokens[: text.prompt_size]
        new = [(text, position, older) for position in range(start, len(text.tokens))]
        self.following += new
        at = 0 if older else len(self.in_order)
        self.in_order[at:at] = new
        text.fed = len(text.tokens)

    def is_worthwhile(self):
        return self.alone or sum(not text.removed for text in self.texts) > 1

    def catch_up(self, text):
        if self.following is None:
            if not self.is_worthwhile():
                return
            self.following, self.in_order, self.prompt = [], [], None
            self.due = [text for text in self.texts if text.open]
            self.next_past = len(self.texts)
        self.feed(text)

    def feed_others(self):
        if self.following is None:
            return
        for text in self.due:
            if not text.removed:
                self.feed(text)
        self.due = []
        for text in reversed(self.texts[: self.next_past]):
            if text.fed is None and not text.removed:
                self.feed(text, older=True)
        self.next_past = 0

    def find_start(self, prompt):
        closed = [text for text in reversed(self.texts) if not text.open and not text.removed and not self.by_prompt]
        shared = {id(text): len(os.path.commonprefix([text.tokens, prompt])) for text in closed}
        starts = [
            text
            for text in closed
            if shared[id(text)] == len(text.tokens)
            or shared[id(text)] > text.prompt_size
            and len(text.tokens) - shared[id(text)] <= 32
        ]
        return max(starts, key=lambda text: (shared[id(text)], -len(text.tokens)), default=None)

    def grew(self, text):
        if self.following is not None and text not in self.due:
            self.due.append(text)

    def drop_index(self):
        self.following, self.due = None, []
        self.past = sum(not text.removed for text in self.texts[: self.past])
        self.texts = [text for text in self.texts if not text.removed]
        for text in self.texts:
            text.fed = None


class Oracle:
    """Texts and groups of a pool with all the memory it wants; slots are numbered by the caller.

    Texts are so short that each call feeds all that it may feed.
    """

    def __init__(self, rule, sources):
        self.rule, self.sources = rule, sources
        self.slots, self.groups = {}, {}

    def open(self, slot, prompt, key):
        group = None
        if "group" in self.sources and key is not None:
            by_prompt = key == "by_prompt"
            alone = "request" not in self.sources
            group = self.groups.setdefault(tuple(prompt) if by_prompt else key, Group(by_prompt, alone))
        start = group and group.find_start(list(prompt))
        whole = start and start.tokens == list(prompt)[: len(start.tokens)]
        self.slots[slot] = text = start if whole else Text(prompt, group)
        if start and not whole:
            text.prompt_size = start.prompt_size
            if not group.open:
                group.drop_index()
        if group is not None:
            group.open += 1
            if whole:
                start.open = True
                start.tokens, start.own = list(prompt), 0
                group.past = min(group.past, group.texts.index(start))
            else:
                group.texts.append(text)
            group.grew(text)
        if start and not whole:
            start.removed = True
            if start.fed is None and start not in group.due:
                group.past -= group.texts.index(start) < group.past
                group.texts.remove(start)

    def _append(self, slot, tokens):
        text = self.slots[slot]
        text.tokens += tokens
        if text.group is not None and tokens:
            text.group.grew(text)
        return text

    def _catch_up(self, text):
        text.own = len(text.tokens)
        if text.group is not None:
            text.group.catch_up(text)

    def append(self, slot, tokens):
        self._catch_up(self._append(slot, tokens))

    def _is_behind(self, text, count):
        """Whether a slot's indexes lack more than its `count` new tokens, or are to be begun."""
        old, group = len(text.tokens) - count, text.group
        if "request" in self.sources and text.own < old:
            return True
        if group is None or group.following is None:
            return group is not None and group.is_worthwhile()
        return text.fed is None or text.fed < old

    def step(self, rows, k):
        """Drafting rows that are behind are fed last."""
        texts = [(self._append(slot, tokens), len(tokens)) for slot, tokens in rows]
        for drafting in (True, False):
            these = [row for row, size in zip(texts, k, strict=True) if bool(size) == drafting]
            for text, _ in sorted(these, key=lambda row: drafting and self._is_behind(*row)):
                self._catch_up(text)
            for text, _ in these:
                if text.group is not None:
                    text.group.feed_others()

    def close(self, slot, keep):
        text = self.slots.pop(slot)
        group = text.group
        if group is None:
            return
        text.open = False
        text.removed = not keep
        if text.removed and group.following is None:
            group.texts.remove(text)
        self._leave(group)

    def _leave(self, group):
        group.open -= 1
        if group.open:
            return
        if any(text.removed for text in group.texts):
            group.drop_index()
        group.past = len(group.texts)
        if not group.texts or "history" not in self.sources:
            self.groups = {key: other for key, other in self.groups.items() if other is not group}

    def saved(self):
        """An oracle of the pool that is loaded from what this one saves."""
        loaded = Oracle(self.rule, self.sources)
        for key, group in self.groups.items() if "history" in self.sources else []:
            kept = [text for text in group.texts if not text.open and not text.removed]
            kept = [text for text in kept if not group.by_prompt or len(text.tokens) > text.prompt_size]
            if kept:
                new = loaded.groups[key] = Group(group.by_prompt, group.alone)
                for text in kept:
                    new.texts.append(copy.copy(text))
                    new.texts[-1].group, new.texts[-1].fed = new, None
                new.past = len(kept)
        return loaded

    def _sources(self, text):
        """(following, in_order, texts) of each source that the slot has, in the order that decides a tie."""
        if "request" in self.sources:
            own = [(text, position, False) for position in range(len(text.tokens))]
            yield "request", own, own, [text.tokens]
        group = text.group
        if group is not None and group.following is not None and text.fed == len(text.tokens):
            texts = [other.tokens[: other.fed] for other in group.texts if other.fed is not None]
            yield "group", group.following, group.in_order, texts

    def draft(self, slot, k):
        """The draft and the source it comes from, None if that is not told."""
        text = self.slots[slot]
        return self._count(text, k) if self.rule == "count" else self._copy(text, k)

    def _copy(self, text, k):
        longest, place, source = 0, None, None
        for name, _, in_order, _ in self._sources(text):
            lengths = [common_suffix(text.tokens, other.tokens[:position]) for other, position, _ in in_order]
            if max(lengths, default=0) > longest:
                longest = max(lengths)
                places = [at for at, length in zip(in_order, lengths, strict=True) if length == longest]
                place, source = places[0 if self.rule == "oldest" else -1], name
        if place is None:
            return [], None
        if source == "group" and "history" in self.sources:
            source = "history" if place[0] in text.group.texts[: text.group.past] else "group"
        return place[0].tokens[place[1] : place[1] + k], source

    def _count(self, text, k):
        drafted = []
        while len(drafted) < k and (token := self._followers(text, drafted)[0]) is not None:
            drafted.append(token)
        return drafted, None

    def _followers(self, text, path):
        """What followed the longest match behind a drafted path: the most frequent token, None if none did, and all."""
        tokens, sources = list(text.tokens), list(self._sources(text))
        lengths = [
            max((common_suffix(tokens, other.tokens[:position]) for other, position, _ in following), default=0)
            for _, following, _, _ in sources
        ]
        for token in path:  # a source in which nothing matches is out for the rest of the draft
            tokens.append(token)
            lengths = [
                longest_known(texts, tokens, length + 1) if length else 0
                for (_, _, _, texts), length in zip(sources, lengths, strict=True)
            ]
        found = [
            most_frequent(following, tokens, most) for (_, following, _, _), most in zip(sources, lengths, strict=True)
        ]
        return max(found, key=lambda match: match[0], default=(0, None, {}))[1:]

    def check(self, slot, tokens, parents, k, tree):
        """What a tree must be by the rules oldest, newest and count, and any draft by suffix and blend."""
        text, paths = self.slots[slot], []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        sources = list(self._sources(text))
        if self.rule in ("oldest", "newest"):
            copies = list(self._copies(text))
            assert all(any(copy[: len(path)] == path for copy in copies) for path in paths)
        elif self.rule == "count":
            assert all(path[-1] in self._followers(text, path[:-1])[1] for path in paths)
        elif self.rule == "suffix":  # each path follows a match of one source
            known = [string for _, _, _, texts in sources for string in texts]
            for path in paths:
                wanted = [*text.tokens[-1:], *path]
                assert len(wanted) > len(path) and longest_known(known, wanted, len(wanted)) == len(wanted)
        elif "common" not in self.sources:
            known = {token for _, following, _, _ in sources for other, _, _ in following for token in other.tokens}
            assert known.issuperset(tokens)
        if tree and self.rule in ("oldest", "newest", "count"):
            assert len(tokens) >= len(self.draft(slot, k)[0])

    def _copies(self, text):
        """What followed the matches of every length."""
        for _, _, in_order, _ in self._sources(text):
            lengths = [common_suffix(text.tokens, other.tokens[:position]) for other, position, _ in in_order]
            for least in {*lengths} - {0}:
                places = [at for at, length in zip(in_order, lengths, strict=True) if length >= least]
                place = places[0 if self.rule == "oldest" else -1]
                yield place[0].tokens[place[1] :]


def most_frequent(following, tokens, length):
    """The longest suffix, of at most `length` tokens, that any token followed: its length, or 0; the token that followed it
    most often, the newest on a tie; how often each did."""
    for size in range(length, 0, -1):
        counts, best, newest = {}, None, None
        for other, at, older in following:
            if other.tokens[max(at - size, 0) : at] != tokens[-size:]:
                continue
            token = other.tokens[at]
            counts[token] = counts.get(token, 0) + 1
            takes = not older or newest in (None, other)
            newest = other if takes else newest
            if counts[token] + takes > counts.get(best, 0):
                best = token
        if counts:
            return size, best, counts
    return 0, None, {}


def longest_known(texts, tokens, most):
    """The length of the longest suffix, of at most `most` tokens, that stands in a text."""
    for size in range(most, 0, -1):
        wanted = tokens[-size:]
        if any(text[at : at + size] == wanted for text in texts for at in range(len(text) - size + 1)):
            return size
    return 0
