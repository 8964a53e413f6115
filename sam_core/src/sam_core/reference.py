# SPDX-License-Identifier: Apache-2.0
"""The pool in plain Python: same calls and same drafts as `sam_core.Pool`, written to be read and to test against.

It follows csrc/sam.c and csrc/pool.c, which explain the method, with two differences: a mark is carried up the link
path by a plain walk (so loops in a text make it slow), and memory is neither counted nor limited.
"""

from __future__ import annotations

from operator import index as as_int

import numpy as np

BY_PROMPT = "by_prompt"

_SOURCES = ("request", "group")
_ROOT = 0


class Index:
    """A suffix automaton over one or several texts; states are numbered from 0, the root."""

    def __init__(self, rule: str) -> None:
        self.newest = rule == "newest"
        self.link: list[int] = [-1]
        self.length: list[int] = [0]
        self.edges: list[dict[int, int]] = [{}]
        self.seen: list[int] = [0]

    def _add_state(self, length: int, link: int, edges: dict[int, int], seen: int) -> int:
        self.link.append(link)
        self.length.append(length)
        self.edges.append(edges)
        self.seen.append(seen)
        return len(self.link) - 1

    def _split(self, p: int, token: int, q: int) -> int:
        """Split the strings that end with an edge from p by token off q and return their state."""
        clone = self._add_state(self.length[p] + 1, self.link[q], dict(self.edges[q]), self.seen[q])
        self.link[q] = clone
        while p >= 0 and self.edges[p].get(token) == q:
            self.edges[p][token] = clone
            p = self.link[p]
        return clone

    def extend(self, last: int, token: int) -> int:
        """Append token to the text whose state is last and return the state of the longer text."""
        q = self.edges[last].get(token)
        if q is not None:
            return q if self.length[q] == self.length[last] + 1 else self._split(last, token, q)
        state = self._add_state(self.length[last] + 1, _ROOT, {}, 0)
        p = last
        while p >= 0 and token not in self.edges[p]:
            self.edges[p][token] = state
            p = self.link[p]
        if p >= 0:
            q = self.edges[p][token]
            self.link[state] = q if self.length[q] == self.length[p] + 1 else self._split(p, token, q)
        return state

    def mark(self, state: int, occurrence: int) -> None:
        """Mark state and its link path with occurrence, an integer above all earlier ones."""
        while state != _ROOT and (self.newest or not self.seen[state]):
            self.seen[state] = occurrence
            state = self.link[state]

    def match(self, state: int) -> tuple[int, int]:
        """Return (mark, length) of the longest marked suffix of the text of state, (0, 0) if there is none."""
        while state != _ROOT and not self.seen[state]:
            state = self.link[state]
        return self.seen[state], self.length[state]


class _Text:
    def __init__(self, prompt_size: int) -> None:
        self.tokens: list[int] = []
        self.prompt_size = prompt_size
        self.state = _ROOT


class _Group:
    def __init__(self, rule: str, by_prompt: bool) -> None:
        self.rule = rule
        self.by_prompt = by_prompt
        self.open = 0
        self.texts: list[_Text] = []
        self.clear()

    def clear(self) -> None:
        self.index = Index(self.rule)
        self.log: list[tuple[_Text, int]] = []
        self.prompt_state: int | None = None

    def append(self, state: int, text: _Text, position: int, token: int) -> int:
        longer = self.index.extend(state, token)
        self.log.append((text, position))
        self.index.mark(state, len(self.log))
        return longer

    def forget(self, text: _Text) -> None:
        self.texts.remove(text)
        log = self.log
        self.clear()
        if not self.texts:
            return
        prompt_size = self.texts[0].prompt_size if self.by_prompt else 0
        for other in self.texts:
            other.state = _ROOT
        state = _ROOT
        for source, position in log:
            if position < prompt_size:  # the prompt stays, as the first remaining text's
                source = self.texts[0] if source is text else source
                state = self.append(state, source, position, source.tokens[position])
                if position + 1 == prompt_size:
                    for other in self.texts:
                        other.state = state
            elif source is not text:
                source.state = self.append(source.state, source, position, source.tokens[position])
        if self.by_prompt:
            self.prompt_state = state


class _Slot:
    def __init__(self, text: _Text, request: Index | None, group: _Group | None) -> None:
        self.text = text
        self.request = request
        self.group = group
        self.last = _ROOT


class Pool:
    """See `sam_core.Pool`. memory_bytes is accepted and reported, but nothing is ever refused or evicted for memory."""

    def __init__(
        self, memory_bytes: int = 1 << 30, rule: str = "newest", sources: tuple[str, ...] = ("request", "group")
    ) -> None:
        if memory_bytes < 0:
            raise ValueError(f"memory_bytes is {memory_bytes}: it must not be negative")
        if rule not in ("newest", "oldest"):
            raise ValueError(f"rule is {rule!r}: this version has the rules 'newest' and 'oldest'")
        if isinstance(sources, str) or not set(sources) <= set(_SOURCES):
            raise ValueError(f"sources is {sources!r}: this version has the sources 'request' and 'group'")
        if not sources:
            raise ValueError("sources is empty: name 'request', 'group' or both")
        self._memory_bytes = memory_bytes
        self._rule = rule
        self._sources = frozenset(sources)
        self._slots: dict[int, _Slot] = {}
        self._free: list[int] = []
        self._groups: dict[bytes | tuple[int, ...], _Group] = {}
        self._appended = 0
        self._drafted = {source: {"drafts": 0, "drafted_tokens": 0} for source in _SOURCES}

    def open(self, prompt_ids, group: bytes | str | None = BY_PROMPT) -> int:
        prompt = _tokens(prompt_ids, "prompt_ids")
        if not (group is None or group == BY_PROMPT or isinstance(group, bytes)):
            raise TypeError(f"group is {group!r}: it must be BY_PROMPT, bytes or None")
        text = _Text(len(prompt))
        request = Index(self._rule) if "request" in self._sources else None
        slot = _Slot(text, request, None)
        if "group" in self._sources and group is not None:
            key = tuple(prompt) if group == BY_PROMPT else group
            slot.group = g = self._groups.setdefault(key, _Group(self._rule, group == BY_PROMPT))
            g.open += 1
            g.texts.append(text)
        known = slot.group is not None and slot.group.prompt_state is not None
        for token in prompt:
            self._append(slot, token, with_group=not known)
        if slot.group is not None and slot.group.by_prompt:
            if known:
                text.state = slot.group.prompt_state
            else:
                slot.group.prompt_state = text.state
        number = self._free.pop() if self._free else len(self._slots)
        self._slots[number] = slot
        return number

    def step(self, slots, tokens, counts, k, out, lengths) -> None:
        numbers, counts, k = slots.tolist(), counts.tolist(), _per_row(k, len(slots))
        self._check(numbers, tokens, counts, k, out, lengths)
        at = 0
        for number, count in zip(numbers, counts):
            for token in tokens[at : at + count].tolist():
                self._append(self._slots[number], token, with_group=True)
            at += count
        self._appended += at
        for row, number in enumerate(numbers):
            draft = self._propose(self._slots[number], k[row]) if k[row] else []
            out[row, : len(draft)] = draft
            lengths[row] = len(draft)

    def close(self, slot: int, keep: bool = True) -> None:
        if slot not in self._slots:
            raise ValueError(f"slot is {slot}, which is not an open slot")
        closed = self._slots.pop(slot)
        self._free = [*self._free, slot] if self._slots else []
        g = closed.group
        if g is not None:
            g.open -= 1
            if not keep:
                g.forget(closed.text)
            if not g.texts:
                self._groups = {key: other for key, other in self._groups.items() if other is not g}

    def drop(self, group) -> bool:
        key = group if isinstance(group, bytes) else tuple(_tokens(group, "group"))
        g = self._groups.get(key)
        if g is not None and g.open:
            raise ValueError(f"group has {g.open} open slot{'' if g.open == 1 else 's'}: close them before dropping it")
        return self._groups.pop(key, None) is not None

    def stats(self) -> dict:
        texts = {id(slot.text): slot.text for slot in self._slots.values() if self._indexed(slot)}
        texts.update((id(text), text) for g in self._groups.values() for text in g.texts)
        return {
            "slots_open": len(self._slots),
            "groups": len(self._groups),
            "tokens": sum(len(text.tokens) for text in texts.values()),
            "bytes_used": 0,
            "memory_bytes": self._memory_bytes,
            "appended": self._appended,
            "drafts": sum(counts["drafts"] for counts in self._drafted.values()),
            "drafted_tokens": sum(counts["drafted_tokens"] for counts in self._drafted.values()),
            "by_source": {source: dict(counts) for source, counts in self._drafted.items()},
            "evicted_groups": 0,
            "exhausted": 0,
        }

    @staticmethod
    def _indexed(slot: _Slot) -> bool:
        return slot.request is not None or slot.group is not None

    def _append(self, slot: _Slot, token: int, with_group: bool) -> None:
        text, position = slot.text, len(slot.text.tokens)
        if slot.request is not None:
            longer = slot.request.extend(slot.last, token)
            slot.request.mark(slot.last, position)
            slot.last = longer
        if with_group and slot.group is not None:
            text.state = slot.group.append(text.state, text, position, token)
        text.tokens.append(token)

    def _propose(self, slot: _Slot, k: int) -> list[int]:
        text, position, length, source = slot.text, 0, 0, "request"
        if slot.request is not None:
            position, length = slot.request.match(slot.last)
        if slot.group is not None:
            occurrence, group_length = slot.group.index.match(text.state)
            if group_length > length:
                text, position = slot.group.log[occurrence - 1]
                length, source = group_length, "group"
        if not length:
            return []
        draft = text.tokens[position : position + k]
        self._drafted[source]["drafts"] += 1
        self._drafted[source]["drafted_tokens"] += len(draft)
        return draft

    def _check(self, numbers, tokens, counts, k, out, lengths) -> None:
        rows, width = len(numbers), out.shape[1]
        for name, size in (("counts", len(counts)), ("k", len(k)), ("out", len(out)), ("lengths", len(lengths))):
            if size != rows:
                raise ValueError(f"{name} has {size} rows, but slots has {rows}")
        for row, number in enumerate(numbers):
            if number not in self._slots:
                raise ValueError(f"slots[{row}] is {number}, which is not an open slot")
            if number in numbers[:row]:
                raise ValueError(f"slots[{row}] is {number}, which stands in an earlier row too")
            if counts[row] < 0:
                raise ValueError(f"counts[{row}] is {counts[row]}: it must not be negative")
            if not 0 <= k[row] <= width:
                raise ValueError(f"k of row {row} is {k[row]}: it must lie between 0 and {width}, the width of out")
        if sum(counts) != len(tokens):
            raise ValueError(f"counts add up to {sum(counts)}, but there are {len(tokens)} tokens")
        _tokens(tokens, "tokens")


def _per_row(k, rows: int) -> list[int]:
    return k.tolist() if isinstance(k, np.ndarray) else [as_int(k)] * rows


def _tokens(values, name: str) -> list[int]:
    tokens = [as_int(value) for value in values]
    for at, token in enumerate(tokens):
        if not 0 <= token < 1 << 31:
            raise ValueError(f"{name}[{at}] is {token}: token ids go from 0 to 2147483647")
    return tokens
