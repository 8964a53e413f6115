# SPDX-License-Identifier: Apache-2.0
"""The pool of requests and groups: the twin of csrc/pool.c, without its limit of memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sam_core.corpus import Corpus

from twin import rules
from twin.automaton import Index, State
from twin.model import LAST, Model

BY_PROMPT = "by_prompt"
SPARE_SLOTS = 64  # closed slot numbers that are kept back before one is used again
SLICE = 2048  # most tokens that a step indexes, in addition to six for each new one of slots that draft
MAX_LOST = 32  # most tokens at the end of a text that are missing in a prompt that continues it
MANY_ROWS = 256  # for which a step with index_later indexes nothing at once
OFF_SLICE = 512  # SLICE for a step that drafts nothing
AHEAD = 64  # most tokens at the end of a text that are missing in an index from which it drafts
_SOURCES = ("request", "group", "corpus", "history", "common")  # in the order of their numbers, as sam_core.SOURCES


@dataclass
class _Work:
    left: int  # tokens that a call may still index


class _Text:
    def __init__(self, prompt: list[int]) -> None:
        self.tokens, self.prompt_size = list(prompt), len(prompt)
        self.open, self.removed, self.freed = True, False, False
        self.drop_index()

    def drop_index(self) -> None:
        self.state: State | None = None  # the text's end in the group's index; None: the index has nothing of the text
        self.fed = 0  # tokens that the group's index has
        self.due = self.older = False


class _Group:
    """The texts of a group in order of opening, and one index over all of them, which is fed bit by bit."""

    def __init__(self, kind: str, by_prompt: bool, alone: bool) -> None:
        self.kind, self.by_prompt, self.alone = kind, by_prompt, alone
        self.texts: list[_Text] = []
        self.past = self.open = 0  # texts[: past] are older than this life; all of a closed group's are
        self.drop_index()

    def drop_index(self) -> None:
        """Forget the index, and the texts that were removed."""
        self.index: Index | None = None  # None until a slot asks for it and there are two texts
        self.prompt: State | None = None  # end of the carrier's prompt in the index, where it stands once
        self.carrier: _Text | None = None  # the text by which the prompt is fed
        self.due: list[_Text] = []  # open texts to feed
        self.next_past = 0  # closed texts of smaller numbers are to be fed, the newest first
        kept = [text for text in self.texts if not text.removed]
        self.past = sum(text in kept for text in self.texts[: self.past])
        self.texts = kept
        for text in kept:
            text.drop_index()

    def enter(self, text: _Text) -> None:
        self.texts.append(text)
        if self.index:
            self.index.texts.append(text.tokens)
        self.grew(text)

    def find_start(self, prompt: list[int]) -> _Text | None:
        """Return the closed text that a slot with this prompt continues, or None. See `group_find_start` in the C."""
        start, most = None, 0
        for text in [] if self.by_prompt else reversed(self.texts):
            size = len(text.tokens)
            shared = len(os.path.commonprefix([text.tokens, prompt]))
            if text.open or text.removed or shared < size and (shared <= text.prompt_size or size - shared > MAX_LOST):
                continue
            if start is None or shared > most or shared == most and size < len(start.tokens):
                start, most = text, shared
        return start

    def reopen(self, text: _Text) -> None:
        text.open = True
        text.older = False
        self.past = min(self.past, self.texts.index(text))
        self.grew(text)

    def grew(self, text: _Text) -> None:
        if self.index and not text.due:
            text.due = True
            self.due.append(text)

    def close(self, text: _Text, keep: bool) -> None:
        text.open = False
        text.removed = not keep
        if text.removed and text.state is None and not text.due:
            if self.index:  # numbers stay as long as an index has them
                text.tokens, text.freed = [], True
                self.index.texts[self.texts.index(text)] = text.tokens
            else:
                self.past -= self.texts.index(text) < self.past
                self.texts.remove(text)

    def is_worthwhile(self) -> bool:
        """Return whether the group should have an index."""
        return self.alone or sum(not text.removed for text in self.texts) > 1

    def catch_up(self, text: _Text, work: _Work) -> None:
        """Feed the tokens of a slot's text that the index lacks. Begin the index if it is worthwhile."""
        if not self.index:
            if not self.is_worthwhile():
                return
            self.index = Index(self.kind, [text.tokens for text in self.texts])
            self.next_past = len(self.texts)
            for other in self.texts:
                if other.open:
                    self.grew(other)
        self._feed(text, work, False)

    def feed_others(self, work: _Work) -> None:
        """Feed the other texts: first texts that grew, then closed ones, the newest first."""
        while self.index and self.due and work.left > 0:
            text = self.due[0]
            if not text.removed and not self._feed(text, work, False):
                return
            self.due.pop(0).due = False
        while self.index and self.next_past and work.left > 0:
            text = self.texts[self.next_past - 1]
            fed = text.open or text.due or text.removed or (text.state and text.fed == len(text.tokens))
            if not fed and not self._feed(text, work, True):
                return
            self.next_past -= 1

    def _feed(self, text: _Text, work: _Work, older: bool) -> bool:
        """Feed a text; return whether the index has all of it now."""
        if self.prompt is None:
            if self.carrier is None:
                self.carrier = text
                text.state = self.index.root
            self._extend(self.carrier, self.carrier.prompt_size, work, False)
            if self.carrier.fed < self.carrier.prompt_size:
                return False
            self.prompt = self.carrier.state
        if text.state is None:
            prompt = self.carrier.tokens[: self.carrier.prompt_size]
            branches = text.tokens[: len(prompt)] == prompt
            text.state = self.prompt if branches else self.index.root
            text.state.again = True
            text.fed = len(prompt) if branches else 0
            text.older = older
        self._extend(text, len(text.tokens), work, text is not self.carrier and text.older)
        return text.fed == len(text.tokens)

    def _extend(self, text: _Text, size: int, work: _Work, older: bool) -> None:
        number = self.texts.index(text)
        while text.fed < size and work.left > 0:
            work.left -= 1
            text.state = self.index.append(text.state, number, text.fed, older)
            text.fed += 1


class _Slot:
    def __init__(self, text: _Text | None, isolated: bool) -> None:
        self.text = text  # None: no source needs the text, and the slot never drafts
        self.isolated = isolated
        self.group: _Group | None = None
        self.request: Index | None = None
        self.last: State | None = None  # end of the indexed part of the text in `request`
        self.fed = 0  # tokens in `request`
        self.corpus_at: list[tuple[int, int]] | None = None
        self.record = rules.Record()


class Pool:
    """Drafts, scores and counters of `sam_core.Pool`, for arguments that it accepts.

    Nothing is ever freed or refused for lack of memory, and tokens in large indexes do not count as more work, as they
    do in the C.
    """

    def __init__(
        self,
        rule: str = "blend",
        sources: Iterable[str] = ("request", "group", "history", "common"),
        corpus: str | os.PathLike[str] | None = None,
        min_prob: float = 0.0,
        vocab_size: int | None = None,
    ) -> None:
        self._rule, self._sources, self.min_prob = rule, tuple(sources), min_prob
        self._vocab_size = vocab_size or 0
        self._kind = rule if rule in ("oldest", "newest") else "counted"
        self._corpus = None if corpus is None else Corpus(corpus)
        self.model = Model(rule)
        self._slots: dict[int, _Slot] = {}
        self._free: list[int] = []  # closed slot numbers, a queue
        self._groups: dict[bytes | tuple[int, ...], _Group] = {}
        self._left: list[tuple[_Slot, int, bool]] = []  # rows to feed: slot, new tokens, whether it drafts
        self._work = _Work(0)  # work left for these rows
        self._appended = 0
        self._drafts, self._drafted, self._accepted = [0] * 5, [0] * 5, [0] * 5  # by source

    def open(self, prompt_ids: Iterable[int], group: bytes | str | None = BY_PROMPT, isolated: bool = False) -> int:
        self.catch_up()
        prompt = list(prompt_ids)
        taken = len(self._slots) + len(self._free)
        number = self._free.pop(0) if len(self._free) > SPARE_SLOTS else taken
        grouped = "group" in self._sources and group is not None
        needed = grouped or "request" in self._sources or "common" in self._sources or self._corpus
        slot = self._slots[number] = _Slot(_Text(prompt) if needed else None, isolated)
        if not slot.text:
            return number
        if grouped:
            key = tuple(prompt) if group == BY_PROMPT else group
            alone = "request" not in self._sources
            slot.group = self._groups.setdefault(key, _Group(self._kind, group == BY_PROMPT, alone))
            start = slot.group.find_start(prompt)
            whole = start and start.tokens == prompt[: len(start.tokens)]
            if start and not whole and not slot.group.open:
                slot.group.drop_index()
            slot.group.open += 1
            if whole:
                slot.text = start
                start.tokens += prompt[len(start.tokens) :]
                slot.group.reopen(start)
            else:
                slot.group.enter(slot.text)
            if start and not whole:
                slot.text.prompt_size = start.prompt_size
                slot.group.close(start, keep=False)
        slot.corpus_at = self._corpus and self._corpus.start()
        for token in slot.text.tokens if slot.corpus_at else []:
            slot.corpus_at = self._corpus.advance(slot.corpus_at, token)
        return number

    def prompt_size(self, slot: int) -> int:
        text = self._slots[slot].text
        return text.prompt_size if text else 0

    def step(self, slots, tokens, counts, k, out, lengths, scores, starts, sources, match_lengths, index_later):
        self.catch_up()
        numbers, counts = slots.tolist(), counts.tolist()
        k = k.tolist() if isinstance(k, np.ndarray) else [k] * len(numbers)
        arrays = {"token": out, "score": scores, "source": sources, "match_length": match_lengths}
        at = 0
        for row, (number, count) in enumerate(zip(numbers, counts, strict=True)):
            added = tokens[at : at + count] if starts is None else tokens[row, starts[row] : starts[row] + count]
            self._append(self._slots[number], added.tolist())
            at += count
        work = sum(6 * count for count, size in zip(counts, k, strict=True) if size) + (SLICE if any(k) else OFF_SLICE)
        self._left = [(self._slots[n], count, size > 0) for n, count, size in zip(numbers, counts, k, strict=True)]
        self._work = _Work(work)
        for slot, count, drafts in self._left if index_later and len(numbers) < MANY_ROWS else []:
            if drafts and self._is_behind(slot, count):
                self._catch_up(slot, self._work)
        if not index_later:
            self.catch_up()
        for row, number in enumerate(numbers):
            slot = self._slots[number]
            record = self._draft(slot, k[row]) if k[row] and slot.text else rules.Record()
            lengths[row] = len(record.drafted)
            for name, array in arrays.items():
                if array is not None:
                    array[row, : len(record.drafted)] = [getattr(made, name) for made in record.drafted]

    def catch_up(self) -> None:
        left, self._left = self._left, []
        for drafting in (True, False):
            rows = [(slot, count) for slot, count, drafts in left if drafts == drafting]
            for slot, _ in sorted(rows, key=lambda row: drafting and self._is_behind(*row)):
                self._catch_up(slot, self._work)
            for slot, _ in rows:
                if slot.group and self._work.left > 0:
                    slot.group.feed_others(self._work)

    def append(self, slot: int, tokens: Iterable[int]) -> None:
        self.catch_up()
        new, to = list(tokens), self._slots[slot]
        self._append(to, new)
        self._catch_up(to, _Work(SLICE + 6 * len(new)))

    def close(self, slot: int, keep: bool = True) -> None:
        self.catch_up()
        closed = self._slots.pop(slot)
        self._free.append(slot)
        group = closed.group
        if group is None:
            return
        group.close(closed.text, keep and not closed.isolated)
        group.open -= 1
        if not group.open:
            if any(text.removed for text in group.texts):
                group.drop_index()
            group.past = len(group.texts)
        if not group.texts or not (group.open or "history" in self._sources):
            self._groups = {key: other for key, other in self._groups.items() if other is not group}

    def drop(self, group: bytes | Iterable[int]) -> bool:
        self.catch_up()
        return self._groups.pop(group if isinstance(group, bytes) else tuple(group), None) is not None

    def stats(self) -> dict:
        texts = {id(slot.text): slot.text for slot in self._slots.values() if slot.text}
        texts.update((id(text), text) for group in self._groups.values() for text in group.texts)
        past = [text for group in self._groups.values() for text in group.texts[: group.past] if not text.freed]
        past = past if "history" in self._sources else []
        counted = {"drafts": self._drafts, "drafted_tokens": self._drafted, "accepted_tokens": self._accepted}
        return {
            "slots_open": len(self._slots),
            "groups": len(self._groups),
            "tokens": sum(len(text.tokens) for text in texts.values()),
            "appended": self._appended,
            **{name: sum(counts) for name, counts in counted.items()},
            "by_source": {of: {name: counts[n] for name, counts in counted.items()} for n, of in enumerate(_SOURCES)},
            "history_texts": len(past),
            "history_tokens": sum(len(text.tokens) for text in past),
        }

    def _append(self, slot: _Slot, new: list[int]) -> None:
        self._appended += len(new)
        if not slot.text or not new:
            return
        rules.learn(self.model, self._rule, slot.record, new, self._accepted)
        slot.record = rules.Record()
        slot.text.tokens += new
        if slot.group:
            slot.group.grew(slot.text)
        for token in new if slot.corpus_at else []:
            slot.corpus_at = self._corpus.advance(slot.corpus_at, token)

    def _is_behind(self, slot: _Slot, count: int) -> bool:
        """Return whether a slot's indexes lack more than its `count` new tokens, or have yet to be begun."""
        if not slot.text:
            return False
        old, group = len(slot.text.tokens) - count, slot.group
        if "request" in self._sources and slot.fed < old:
            return True
        if not group or not group.index:
            return group is not None and group.is_worthwhile()
        return slot.text.state is None or slot.text.fed < old

    def _catch_up(self, slot: _Slot, work: _Work) -> None:
        if not slot.text or work.left <= 0:
            return
        if "request" in self._sources and not slot.request:
            slot.request = Index(self._kind, [slot.text.tokens])
            slot.last = slot.request.root
        while slot.request and slot.fed < len(slot.text.tokens) and work.left > 0:
            work.left -= 1
            slot.last = slot.request.append(slot.last, 0, slot.fed)
            slot.fed += 1
        if slot.group:
            slot.group.catch_up(slot.text, work)

    def _draft(self, slot: _Slot, k: int) -> rules.Record:
        group, index, match, past = slot.group, [None, None], [(None, 0), (None, 0)], 0
        if slot.request and len(slot.text.tokens) - slot.fed <= AHEAD:
            index[0] = slot.request
            match[0] = slot.request.match(slot.last, slot.text.tokens[slot.fed :])
        if group and group.index and slot.text.state and len(slot.text.tokens) - slot.text.fed <= AHEAD:
            index[1] = group.index
            match[1] = group.index.match(slot.text.state, slot.text.tokens[slot.text.fed :])
            past = group.past if "history" in self._sources else 0
        last = tuple(reversed([*[-1] * LAST, *slot.text.tokens[-LAST:]][-LAST:]))
        common = "common" in self._sources and not slot.isolated
        context = rules.Context(
            index, match, past, self._corpus, slot.corpus_at, common, slot.isolated, last, self._vocab_size
        )
        slot.record = record = rules.draft(self.model, self._rule, context, k, self.min_prob)
        for at, made in enumerate(record.drafted):
            self._drafts[made.source] += at == 0
            self._drafted[made.source] += 1
        return record
