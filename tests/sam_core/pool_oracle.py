# SPDX-License-Identifier: Apache-2.0
"""The drafting rules by quadratic search over the texts, without any automaton; and a NumPy-shaped call of step."""

import numpy as np


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


class Group:
    def __init__(self, by_prompt):
        self.by_prompt = by_prompt
        self.open = 0
        self.texts = []
        self.following = []  # (text, position) of each token that follows an occurrence, in order of arrival


class Oracle:
    """Texts and groups of a pool; slots are numbered by the caller."""

    def __init__(self, rule, sources):
        self.rule, self.sources = rule, sources
        self.slots, self.groups = {}, {}

    def open(self, slot, prompt, key):
        group = None
        if "group" in self.sources and key is not None:
            by_prompt = key == "by_prompt"
            group = self.groups.setdefault(tuple(prompt) if by_prompt else key, Group(by_prompt))
            text = Text(prompt, group)
            if not (by_prompt and group.texts):
                group.following += [(text, position) for position in range(len(prompt))]
            group.texts.append(text)
            group.open += 1
        self.slots[slot] = Text(prompt, None) if group is None else text

    def append(self, slot, tokens):
        text = self.slots[slot]
        for token in tokens:
            if text.group is not None:
                text.group.following.append((text, len(text.tokens)))
            text.tokens.append(token)

    def _best(self, text, following):
        lengths = [common_suffix(text.tokens, source.tokens[:position]) for source, position in following]
        best = max(lengths, default=0)
        if not best:
            return 0, None
        places = [place for place, length in zip(following, lengths) if length == best]
        return best, places[0 if self.rule == "oldest" else -1]

    def draft(self, slot, k):
        text, length, place = self.slots[slot], 0, None
        if "request" in self.sources:
            length, place = self._best(text, [(text, position) for position in range(len(text.tokens))])
        if text.group is not None:
            group_length, group_place = self._best(text, text.group.following)
            if group_length > length:
                place = group_place
        return [] if place is None else place[0].tokens[place[1] : place[1] + k]

    def close(self, slot, keep):
        text = self.slots.pop(slot)
        group = text.group
        if group is None:
            return
        group.open -= 1
        if not keep:
            group.texts.remove(text)
            heir = group.texts[0] if group.by_prompt and group.texts else None
            group.following = [
                (heir if source is text else source, position)
                for source, position in group.following
                if source is not text or (heir and position < text.prompt_size)
            ]
        if not group.texts:
            self.groups = {key: other for key, other in self.groups.items() if other is not group}
