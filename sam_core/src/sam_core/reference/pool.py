# SPDX-License-Identifier: Apache-2.0
"""The pool of requests and groups: the twin of csrc/pool.c, without its limit of memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from operator import index as as_int

import numpy as np
import numpy.typing as npt

from sam_core.corpus import Corpus
from sam_core.reference import rules
from sam_core.reference.automaton import Index, State
from sam_core.reference.model import ORDERS, Model

BY_PROMPT = "by_prompt"
SPARE_SLOTS = 64  # closed slot numbers that wait at least before one is used again
_SOURCES = ("request", "group", "corpus", "history")  # by their numbers


class _Text:
    def __init__(self, prompt_size: int) -> None:
        self.tokens: list[int] = []
        self.prompt_size = prompt_size
        self.number = -1  # among its group's texts
        self.state: State | None = None  # its end in the group's index


class _Group:
    """The texts of a group in order of opening, and one index over all of them.

    Attributes:
        texts: texts[: past] are older than this life; all of a closed group's are.
        index: None: to be built, one text after another, when a slot of the group next drafts.
        prompt: end of the prompt in the index; the prompt of a group by prompt stands there once.
    """

    def __init__(self, kind: str, by_prompt: bool) -> None:
        self.kind, self.by_prompt = kind, by_prompt
        self.texts: list[_Text] = []
        self.past = self.open = 0
        self.index: Index | None = None
        self.prompt: State | None = None

    def enter(self, text: _Text) -> None:
        text.number = len(self.texts)
        self.texts.append(text)
        if len(self.texts) == 1:  # nothing is saved by waiting
            self.build()
        elif self.index:
            self.index.texts.append(text.tokens)
            self._insert(text)

    def forget(self, text: _Text) -> None:
        self.texts.remove(text)
        for number, other in enumerate(self.texts):
            other.number = number
        self.index = None

    def build(self) -> None:
        self.index = Index(self.kind, [text.tokens for text in self.texts])
        self.prompt = None
        for text in self.texts:
            self._insert(text)

    def _insert(self, text: _Text) -> None:
        text.state, done = self.index.root, 0
        if self.by_prompt:
            if self.prompt is None:
                self._feed(text, 0, text.prompt_size)
                self.prompt = text.state
            else:
                text.state = self.index.branch(self.prompt)
            done = text.prompt_size
        self._feed(text, done, len(text.tokens))

    def _feed(self, text: _Text, start: int, stop: int) -> None:
        for position in range(start, stop):
            text.state = self.index.append(text.state, text.number, position)

    def appended(self, text: _Text) -> None:
        """A text has one token more."""
        if self.index:
            self._feed(text, len(text.tokens) - 1, len(text.tokens))


class _Slot:
    def __init__(self, text: _Text | None) -> None:
        self.text = text  # None: nothing needs it, and the slot never drafts
        self.group: _Group | None = None
        self.request: Index | None = None
        self.last: State | None = None  # end of the text in it
        self.corpus_at: list[tuple[int, int]] | None = None
        self.record = rules.Record()


class Pool:
    """See `sam_core.Pool`, whose drafts, scores and counters it gives; a pool of it can be neither saved nor loaded.

    memory_bytes is accepted and reported, but nothing is ever freed or refused for lack of memory.
    """

    def __init__(
        self,
        memory_bytes: int = 1 << 30,
        rule: str = "blend",
        sources: Iterable[str] = ("request", "group", "history"),
        corpus: str | os.PathLike[str] | None = None,
        min_prob: float = 0.0,
    ) -> None:
        if memory_bytes < 0:
            raise ValueError(f"memory_bytes is {memory_bytes}: it must not be negative")
        if rule not in rules.RULES:
            raise ValueError(f"rule is {rule!r}: it must be 'oldest', 'newest', 'count', 'suffix' or 'blend'")
        for name in [sources] if isinstance(sources, str) else (sources := tuple(sources)):
            if isinstance(sources, str) or name not in ("request", "group", "history"):
                raise ValueError(
                    f"sources has {name!r}: it must be a sequence of 'request', 'group' and 'history'; "
                    "the corpus is given as corpus=path"
                )
        if not sources:
            raise ValueError("sources is empty: name 'request', 'group' or both")
        if "history" in sources and "group" not in sources:
            raise ValueError("sources has 'history' without 'group', of which it is a part: name both")
        if not 0 <= min_prob <= 1:
            raise ValueError(f"min_prob is {float(min_prob)!r}: it must lie between 0 and 1")
        self._memory_bytes, self._rule, self._sources, self._least = memory_bytes, rule, sources, min_prob
        self._kind = rule if rule in ("oldest", "newest") else "counted"
        self._corpus = None if corpus is None else Corpus(corpus)
        self._model = Model(copied=rule in ("oldest", "newest"))
        self._slots: dict[int, _Slot] = {}
        self._free: list[int] = []  # closed slot numbers, a queue
        self._groups: dict[bytes | tuple[int, ...], _Group] = {}
        self._appended = 0
        self._drafts, self._drafted, self._accepted = [0] * 4, [0] * 4, [0] * 4  # by source

    def open(self, prompt_ids: Iterable[int], group: bytes | str | None = BY_PROMPT) -> int:
        prompt = _tokens(prompt_ids, "prompt_ids")
        if not (group is None or group == BY_PROMPT or isinstance(group, bytes)):
            raise TypeError(f"group is {group!r}: it must be BY_PROMPT, bytes or None")
        taken = len(self._slots) + len(self._free)
        number = self._free.pop(0) if len(self._free) > SPARE_SLOTS else taken
        grouped = "group" in self._sources and group is not None
        needed = grouped or "request" in self._sources or self._corpus
        slot = self._slots[number] = _Slot(_Text(len(prompt)) if needed else None)
        if not slot.text:
            return number
        if "request" in self._sources:
            slot.request = Index(self._kind, [slot.text.tokens])
            slot.last = slot.request.root
        slot.corpus_at = self._corpus and self._corpus.start()
        for token in prompt:
            self._append(slot, token)
        if grouped:
            key = tuple(prompt) if group == BY_PROMPT else group
            slot.group = self._groups.setdefault(key, _Group(self._kind, group == BY_PROMPT))
            slot.group.open += 1
            slot.group.enter(slot.text)
        return number

    def step(self, slots, tokens, counts, k, out, lengths, scores=None, parents=None) -> None:
        numbers, counts = slots.tolist(), counts.tolist()
        k = k.tolist() if isinstance(k, np.ndarray) else [as_int(k)] * len(numbers)
        self._check(numbers, tokens, counts, k, out, lengths, scores, parents)
        at = 0
        for number, count in zip(numbers, counts):
            self.append(number, tokens[at : at + count])
            at += count
        for row, number in enumerate(numbers):
            slot = self._slots[number]
            record = self._draft(slot, k[row], parents is not None) if k[row] and slot.text else rules.Record()
            lengths[row] = size = record.drafted
            out[row, :size] = record.tokens[:size]
            if scores is not None:
                scores[row, :size] = record.scores[:size]
            if parents is not None:
                parents[row, :size] = record.parents[:size]

    def append(self, slot: int, tokens: int | Iterable[int]) -> None:
        if slot not in self._slots:
            raise ValueError(f"slot is {slot}, which is not an open slot")
        one = hasattr(tokens, "__index__") and not hasattr(tokens, "__len__")
        new, to = _tokens([tokens] if one else tokens, "tokens"), self._slots[slot]
        self._appended += len(new)
        if not to.text or not new:
            return
        rules.learn(self._model, self._rule, to.record, new, self._accepted)
        to.record = rules.Record()
        for token in new:
            self._append(to, token)

    def close(self, slot: int, keep: bool = True) -> None:
        if slot not in self._slots:
            raise ValueError(f"slot is {slot}, which is not an open slot")
        closed = self._slots.pop(slot)
        self._free.append(slot)
        group = closed.group
        if group is None:
            return
        if not keep:
            group.forget(closed.text)
        group.open -= 1
        if not group.open:
            group.past = len(group.texts)
            if not group.texts:
                self._groups = {key: other for key, other in self._groups.items() if other is not group}

    def drop(self, group: bytes | Iterable[int]) -> bool:
        key = group if isinstance(group, bytes) else tuple(_tokens(group, "group"))
        found = self._groups.get(key)
        if found and found.open:
            slots = "slot" if found.open == 1 else "slots"
            raise ValueError(f"group has {found.open} open {slots}: close them before dropping it")
        return self._groups.pop(key, None) is not None

    def stats(self) -> dict:
        texts = {id(slot.text): slot.text for slot in self._slots.values() if slot.text}
        texts.update((id(text), text) for group in self._groups.values() for text in group.texts)
        past = [text for group in self._groups.values() for text in group.texts[: group.past]]
        past = past if "history" in self._sources else []
        counted = {"drafts": self._drafts, "drafted_tokens": self._drafted, "accepted_tokens": self._accepted}
        return {
            "slots_open": len(self._slots),
            "groups": len(self._groups),
            "tokens": sum(len(text.tokens) for text in texts.values()),
            "bytes_used": 0,
            "memory_bytes": self._memory_bytes,
            "appended": self._appended,
            **{name: sum(counts) for name, counts in counted.items()},
            "by_source": {
                source: {name: counts[number] for name, counts in counted.items()}
                for number, source in enumerate(_SOURCES)
            },
            "history_texts": len(past),
            "history_tokens": sum(len(text.tokens) for text in past),
            "evicted_groups": 0,
            "evicted_history": 0,
            "exhausted": 0,
        }

    def learned(self) -> npt.NDArray[np.uint32]:
        """What was learned, as `Model.learned` gives it."""
        return self._model.learned()

    def _append(self, slot: _Slot, token: int) -> None:
        tokens = slot.text.tokens
        tokens.append(token)
        if slot.request:
            slot.last = slot.request.append(slot.last, 0, len(tokens) - 1)
        if slot.group:
            slot.group.appended(slot.text)
        if slot.corpus_at:
            slot.corpus_at = self._corpus.advance(slot.corpus_at, token)

    def _draft(self, slot: _Slot, k: int, tree: bool) -> rules.Record:
        group, index, match, past = slot.group, [slot.request, None], [(None, 0), (None, 0)], 0
        if slot.request:
            match[0] = slot.request.match(slot.last)
        if group:
            if not group.index:
                group.build()
            index[1], match[1] = group.index, group.index.match(slot.text.state)
            past = group.past if "history" in self._sources else 0
        last = tuple(reversed([*[-1] * ORDERS, *slot.text.tokens[-ORDERS:]][-ORDERS:]))
        context = rules.Context(index, match, past, self._corpus, slot.corpus_at, last)
        slot.record = record = rules.draft(self._model, self._rule, context, k, self._least, tree)
        for at, source in enumerate(record.sources[: record.drafted]):
            self._drafts[source] += at == 0
            self._drafted[source] += 1
        return record

    def _check(self, numbers, tokens, counts, k, out, lengths, scores, parents) -> None:
        rows, width = len(numbers), out.shape[1]
        sizes = {"counts": counts, "k": k, "out": out, "lengths": lengths, "scores": scores, "parents": parents}
        for name, given in sizes.items():
            if given is not None and len(given) != rows:
                raise ValueError(f"{name} has {len(given)} rows, but slots has {rows}")
        for row, number in enumerate(numbers):
            if number not in self._slots:
                raise ValueError(f"slots[{row}] is {number}, which is not an open slot")
            if number in numbers[:row]:
                raise ValueError(f"slots[{row}] is {number}, which stands in an earlier row too")
            if counts[row] < 0:
                raise ValueError(f"counts[{row}] is {counts[row]}: it must not be negative")
            if not 0 <= k[row] <= min(width, rules.MAX_DRAFT):
                limit = f"{width}, the width of out" if width <= rules.MAX_DRAFT else "64, the longest draft"
                raise ValueError(f"k of row {row} is {k[row]}: it must lie between 0 and {limit}")
        if sum(counts) != len(tokens):
            raise ValueError(f"counts add up to {sum(counts)}, but there are {len(tokens)} tokens")
        _tokens(tokens, "tokens")


def _tokens(values: Iterable[int], name: str) -> list[int]:
    tokens = [as_int(value) for value in values]
    for at, token in enumerate(tokens):
        if not 0 <= token < 1 << 31:
            raise ValueError(f"{name}[{at}] is {token}: token ids go from 0 to 2147483647")
    return tokens
