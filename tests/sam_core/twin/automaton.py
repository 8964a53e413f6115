# SPDX-License-Identifier: Apache-2.0
"""A suffix automaton over several texts that knows what followed every string in them: the twin of csrc/sam*.c.

csrc/sam.h draws the structure. Here every state is an object with dictionaries, strings that occurred once included
(the C keeps these as leaves of one link each), and a token counts for the whole link path, so a long loop in a text is
slow. What can be read is the same: states, counts, places and the order in which successors are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MAX_MATCH = 64  # tokens; except in "oldest", longer matches count as matches of their last 64 tokens

Place = tuple[int, int]  # number of a text, position in it


@dataclass(slots=True, eq=False)
class State:
    """Strings that end at exactly the same places of the texts: suffixes of the longest, in a range of lengths."""

    length: int  # tokens in the longest string
    end: Place | None  # where the longest string ended first
    link: State | None = None  # state of the next shorter suffixes, which end at more places; None: the empty string
    edges: dict[int, State] = field(default_factory=dict)  # token -> the longest string with it, in order of creation
    counts: dict[int, int] = field(default_factory=dict)  # token -> how often it followed
    best: int = -1  # the token that followed most often, the newest on a tie
    place: Place | None = None  # place of the token that followed last (in an "oldest" index: first)
    again: bool = False  # whether the strings occurred again or other texts branch off here: the C has a node of it

    @property
    def followed(self) -> int:
        """The number of occurrences that are followed by a token."""
        return sum(self.counts.values())


def shorter(state: State | None, length: int) -> Iterator[tuple[State, int]]:
    """Yield a match of `length` tokens in `state`, and its suffixes that end at more places, with their lengths."""
    while length:
        yield state, length
        state = state.link
        length = state.length


class Index:
    """The automaton of `texts`, lists of token ids that the owner extends; kind is "oldest", "newest" or "counted"."""

    def __init__(self, kind: str, texts: list[list[int]]) -> None:
        self.oldest = kind == "oldest"
        self.texts = texts
        self.root = State(0, None)
        self.appended = 0
        self.came: Counter[int] = Counter()
        self.frequent = (-1, 0)  # the most frequent token, the newest on a tie, and its count

    def append(self, last: State, text: int, position: int, older: bool = False) -> State:
        """Append the token at `position` of text number `text`, whose state so far is `last`; return the new state.

        An `older` text counts as older than all that is in the index: see csrc/sam.h.
        """
        token = self.texts[text][position]
        state = self._extend(last, token, (text, position))
        self._mark(last, token, (text, position), older)
        self.appended += 1
        self.came[token] += 1
        if self.came[token] >= self.frequent[1] + older:
            self.frequent = token, self.came[token]
        return state

    def _extend(self, last: State, token: int, place: Place) -> State:
        if token in last.edges:  # another text has said all this
            return self._meet(last, token)
        state = State(last.length + 1, place)
        p: State | None = last
        while p is not None and token not in p.edges:
            p.edges[token] = state
            p = p.link
        state.link = self.root if p is None else self._meet(p, token)
        return state

    def _meet(self, p: State, token: int) -> State:
        """Return the state of the longest string of `p` plus `token`, which now occurs again; split it off if new."""
        q = p.edges[token]
        if q.length == p.length + 1:
            q.again = True
            return q
        clone = State(p.length + 1, q.end)
        clone.again = True
        clone.edges = dict(q.edges)
        clone.counts = dict(q.counts)
        clone.best, clone.place = q.best, q.place
        clone.link, q.link = q.link, clone
        above: State | None = p
        while above is not None and above.edges.get(token) is q:
            above.edges[token] = clone
            above = above.link
        return clone

    def _mark(self, state: State, token: int, place: Place, older: bool) -> None:
        """Record that `token` at `place` follows the text of `state`, and so all its suffixes."""
        while state.link is not None:
            # A string of more than MAX_MATCH tokens is counted only while it has occurred once.
            if self.oldest or not state.again or state.link.length < MAX_MATCH:
                own = state.place is not None and state.place[0] == place[0]
                takes = state.place is None or (older and not own if self.oldest else not older or own)
                count = state.counts[token] = state.counts.get(token, 0) + 1
                if count + takes > state.counts.get(state.best, 0):
                    state.best = token
                if takes:
                    state.place = place
            state = state.link

    # ---- reading

    def match(self, state: State, ahead: Sequence[int] = ()) -> tuple[State, int]:
        """The longest suffix of the text of `state` that something followed, and its length; the root and 0: none.

        ahead: the text's next tokens, which are not in the index; the match has at most MAX_MATCH tokens then.
        """
        length = state.length
        if ahead or not self.oldest:
            state, length = self.near(state, length)
        for token in ahead:
            state, length = self.advance(state, length, token)
        return next(((at, size) for at, size in shorter(state, length) if at.counts), (self.root, 0))

    def near(self, state: State, length: int) -> tuple[State, int]:
        """Return state and length of at most the last MAX_MATCH tokens of a string of `length` tokens in `state`."""
        if length <= MAX_MATCH:
            return state, length
        while state.link is not None and state.link.length >= MAX_MATCH:
            state = state.link
        return state, MAX_MATCH

    def advance(self, state: State, length: int, token: int) -> tuple[State, int]:
        """Extend a match by one token; return state and length of the longest suffix that is in the index."""
        while token not in state.edges and state.link is not None:
            state = state.link
            length = state.length
        if token in state.edges:
            state = state.edges[token]
            length += 1
        return self.near(state, length)

    def newest(self, state: State) -> int:
        """The token that followed last (of an "oldest" index: first), -1 if none did."""
        return self.texts[state.place[0]][state.place[1]] if state.place else -1
