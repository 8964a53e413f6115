# SPDX-License-Identifier: Apache-2.0
"""Time and memory: sam_core beside its peers, called from Python with preallocated buffers.

Nothing is subtracted: a figure holds the call from Python and its share of the loop around it. What an empty call costs
is reported beside the table.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import peers
from rows import Row, Sample, alternate
from texts import SIBLINGS, Texts, periodic

import sam_core
from sam_core import replay

SECTION = "time and memory"
MEMORY = 8 << 30
BATCH = 64
PEER_ROWS = 8  # in loops over one request after another their cost a request does not depend on the batch
clock = time.perf_counter
NOTHING = np.empty(0, np.int32)


class SamBatch:
    """Rows of one pool, SIBLINGS of them a group where it has groups."""

    def __init__(self, table: np.ndarray, size: int, groups: bool, **options):
        rows = len(table)
        self.pool = sam_core.Pool(memory_bytes=MEMORY, **options)
        names = [b"%d" % (row // SIBLINGS) if groups else None for row in range(rows)]
        self.slots = np.array([self.pool.open(text[:1], name) for text, name in zip(table, names)], np.int32)
        self.lengths = np.empty(rows, np.int32)
        self.zeros, self.ones = np.zeros(rows, np.int32), np.ones(rows, np.int32)
        self.out = {k: np.empty((rows, k), np.int32) for k in (0, 1, 3, 16)}
        self.parents, self.scores = np.empty((rows, 16), np.int32), np.empty((rows, 16), np.float32)
        fed = np.ascontiguousarray(table[:, 1:size])
        for at in range(0, size - 1, 512):  # siblings grow side by side
            part = fed[:, at : at + 512]
            counts = np.full(rows, part.shape[1], np.int32)
            self.pool.step(self.slots, part.reshape(-1), counts, 0, self.out[0], self.lengths)
        self.columns, self.at = np.ascontiguousarray(table.T), size

    def append(self):
        self.pool.step(self.slots, self.columns[self.at], self.ones, 0, self.out[0], self.lengths)
        self.at += 1

    def draft(self, k):
        self.pool.step(self.slots, NOTHING, self.zeros, k, self.out[k], self.lengths)

    def tree(self, n):
        self.pool.step(self.slots, NOTHING, self.zeros, n, self.out[n], self.lengths, self.scores, self.parents)

    def step(self, k):
        self.pool.step(self.slots, self.columns[self.at], self.ones, k, self.out[k], self.lengths)
        self.at += 1


class Cost:
    """The measurements of time and memory; `quick` makes all of them small."""

    def __init__(self, texts: Texts, quick: bool, say: Callable[[str], None]):
        self.rounds = 2 if quick else 7
        self.sizes = (256, 1024) if quick else (1024, 4096, 32_768)
        self.steps = 20 if quick else 100
        self.warm = 512 if quick else 4096
        self.corpus_size = 100_000 if quick else 10_000_000
        self.texts, self.say = texts, say
        longest = self.sizes[-1]
        self.table, self.remark = texts.ordinary(BATCH, longest + self.steps * (self.rounds + 2))
        self.long = self.table[0, :longest]
        self.details: dict[str, object] = {"text": self.remark, "empty_call_us": self.empty_calls()}

    def rows(self) -> list[tuple[list[Row], Callable[[list[Row]], None]]]:
        """Rows and the function that measures each bundle of them."""

        def row(what: str, unit: str, target: float) -> Row:
            return Row(SECTION, what, unit, "<=", target)

        longest = self.sizes[-1]
        return [
            (
                [
                    row(f"append, us a call, sequence of {longest}", "us", 0.3),
                    row("append, p99 us", "us", 3),
                    row("append, longest pause us", "us", 1000),
                ],
                self.append_calls,
            ),
            ([row(f"append in batches of {BATCH} rows, us a token", "us", 0.1)], self.append_batches),
            ([row("append with counts, request and group, us a token", "us", 0.5)], self.append_counts),
            ([row("draft k=3 newest, us", "us", 0.1)], lambda rows: self.drafts(rows, "newest", groups=False)),
            ([row("draft k=3 count, us", "us", 0.5)], lambda rows: self.drafts(rows, "count", groups=False)),
            ([row("draft k=3 blend with group, us", "us", 3)], lambda rows: self.drafts(rows, "blend", groups=True)),
            ([row("tree n=16 blend with group, us", "us", 10)], lambda rows: self.drafts(rows, "blend", True, tree=16)),
            (
                [row(f"step of {BATCH} rows, newest, ordinary text, us", "us", 60)],
                lambda rows: self.whole(rows, "newest"),
            ),
            (
                [row(f"step of {BATCH} rows, newest, period 8, us", "us", 20)],
                lambda rows: self.whole(rows, "newest", period=8),
            ),
            (
                [row(f"step of {BATCH} rows, newest, period 1, us", "us", 20)],
                lambda rows: self.whole(rows, "newest", period=1),
            ),
            (
                [row(f"step of {BATCH} rows, blend with group, ordinary text, us", "us", 150)],
                lambda rows: self.whole(rows, "blend", groups=True),
            ),
            ([row("bulk build of 4096 tokens, ms", "ms", 0.3)], self.bulk),
            ([row("memory, request, bytes a token", "bytes", 60)], self.memory_request),
            ([row("memory, request and group with counts, bytes a token", "bytes", 100)], self.memory_group),
            (
                [
                    row(f"corpus of {self.corpus_size:,} tokens, bytes a token", "bytes", 12),
                    Row(SECTION, "corpus build, tokens a second", "tokens/s", ">=", 1e6),
                    row("corpus look-up (append and draft k=1), us", "us", 20),
                ],
                self.corpus,
            ),
        ]

    def peer(self, row: Row, name: str, make: Callable[[], object]) -> object | None:
        """The peer's object, or None after the row was told why there is none."""
        try:
            return make()
        except peers.NotAvailable as error:
            row.peers[name] = f"not available: {error}"
            return None

    # ---- appending

    def append_calls(self, rows: list[Row]) -> None:
        tokens = self.long.tolist()
        slices = [self.long[at : at + 1] for at in range(len(tokens))]

        def ours() -> Callable[[int], None]:
            pool = sam_core.Pool(memory_bytes=MEMORY, rule="newest", sources=("request",))
            return partial(pool.append, pool.open([], None))

        def arctic() -> Callable[[np.ndarray], None]:
            trees = peers.arctic()(peers.DEPTH)
            trees.start_request(0, slices[0])
            return partial(trees.add_active_response, 0)

        contestants: dict[str, tuple[Callable, list]] = {
            "ours": (ours, tokens),
            "python": (lambda: peers.PythonSam().append, tokens),
        }
        if self.peer(rows[0], "arctic", peers.arctic):
            contestants["arctic"] = arctic, slices

        def together(make: Callable, items: list) -> float:
            append = make()
            start = clock()
            for item in items:
                append(item)
            return 1e6 * (clock() - start) / len(items)

        def apart(make: Callable, items: list, taken: list[np.ndarray]) -> float:
            append, times = make(), np.empty(len(items))
            for at, item in enumerate(items):
                start = clock()
                append(item)
                times[at] = clock() - start
            taken.append(1e6 * np.array([np.quantile(times, 0.99), times.max()]))
            return 0.0

        _fill(rows[0], alternate({name: partial(together, *c) for name, c in contestants.items()}, self.rounds))
        taken: dict[str, list[np.ndarray]] = {name: [] for name in contestants}
        alternate({name: partial(apart, *c, taken[name]) for name, c in contestants.items()}, self.rounds)
        for column, row in enumerate(rows[1:]):
            _fill(row, {name: float(np.median(times, axis=0)[column]) for name, times in taken.items()})
            row.note = "the two readings of the clock around each call included"

    def append_batches(self, rows: list[Row]) -> None:
        part = self.append_parts(rows[0], 512, groups=False, rule="newest", sources=("request",))
        rows[0].note = f"{part} tokens a row and call"

    def append_counts(self, rows: list[Row]) -> None:
        part = self.append_parts(rows[0], 64, groups=True, rule="blend", sources=("request", "group"))
        rows[0].note = f"{BATCH} rows in groups of {SIBLINGS}, {part} tokens a row and call"

    def append_parts(self, row: Row, most: int, groups: bool, **options) -> int:
        """Fills a row with microseconds a token of appending to a batch in parts; returns the tokens of a part."""
        part = min(most, self.long.size)

        def sample() -> float:
            pool = sam_core.Pool(memory_bytes=MEMORY, **options)
            names = [b"%d" % (row // SIBLINGS) if groups else None for row in range(BATCH)]
            slots = np.array([pool.open([], name) for name in names], np.int32)
            counts, out, lengths = np.full(BATCH, part, np.int32), np.empty((BATCH, 0), np.int32), slots.copy()
            blocks = [self.table[:, at : at + part].reshape(-1) for at in range(0, self.warm, part)]
            start = clock()
            for block in blocks:
                pool.step(slots, block, counts, 0, out, lengths)
            return 1e6 * (clock() - start) / sum(map(len, blocks))

        _fill(row, alternate({"ours": sample}, self.rounds))
        return part

    # ---- drafting

    def drafts(self, rows: list[Row], rule: str, groups: bool, tree: int = 0) -> None:
        """One append and one draft a step; the draft alone is timed. The row gets the slowest of the sizes.

        With groups: one group in lock-step, as replay does; the steps of 64 rows are in `whole`.
        """
        (row,) = rows
        table = self.table[:SIBLINGS] if groups else self.table
        sources = ("request", "group") if groups else ("request",)
        by_size: dict[str, dict[int, float]] = {}
        for size in self.sizes:
            batches = {"ours": SamBatch(table, size, groups, rule=rule, sources=sources)}
            if not tree:
                small = self.table[:PEER_ROWS]
                batches["python"] = peers.PythonBatch(small, size)
                batches["arctic"] = self.peer(row, "arctic", lambda: peers.ArcticBatch(small, size))
                batches["ngram"] = self.peer(row, "ngram", lambda: peers.NgramBatch(small, size, 3))

            def sample(batch) -> Sample:
                draft = (lambda: batch.tree(tree)) if tree else (lambda: batch.draft(3))
                count = len(table) if isinstance(batch, SamBatch) else PEER_ROWS

                def run() -> float:
                    total = 0.0
                    for _ in range(self.steps):
                        batch.append()
                        start = clock()
                        draft()
                        total += clock() - start
                    return 1e6 * total / self.steps / count

                return run

            samples = {name: sample(batch) for name, batch in batches.items() if batch}
            for run in samples.values():
                run()  # compiles, warms
            for name, value in alternate(samples, self.rounds).items():
                by_size.setdefault(name, {})[size] = value
        _fill(row, {name: max(values.values()) for name, values in by_size.items()})
        row.note = (
            f"{len(table)} rows; at " + ", ".join(f"{n}: {us:.3g}" for n, us in by_size["ours"].items()) + " tokens"
        )
        self.details[row.what] = by_size

    def whole(self, rows: list[Row], rule: str, groups: bool = False, period: int = 0) -> None:
        """Append a token to and draft k=3 for each row of the batch: microseconds."""
        (row,) = rows
        size = self.warm
        length = size + self.steps * (self.rounds + 2)
        table = periodic(BATCH, length, period) if period else self.table[:, :length]
        sources = ("request", "group") if groups else ("request",)
        batches = {"ours": SamBatch(table, size, groups, rule=rule, sources=sources)}
        batches["python"] = peers.PythonBatch(table, size)
        batches["arctic"] = self.peer(row, "arctic", lambda: peers.ArcticBatch(table, size))
        batches["ngram"] = self.peer(row, "ngram", lambda: peers.NgramBatch(table, size, 3))

        def sample(batch) -> Sample:
            def once() -> None:
                batch.append()
                batch.draft(3)

            step = (lambda: batch.step(3)) if isinstance(batch, SamBatch) else once

            def run() -> float:
                start = clock()
                for _ in range(self.steps):
                    step()
                return 1e6 * (clock() - start) / self.steps

            return run

        samples = {name: sample(batch) for name, batch in batches.items() if batch}
        for run in samples.values():
            run()
        _fill(row, alternate(samples, self.rounds))
        row.note = f"after {size} tokens a row"

    # ---- building, memory, corpus

    def bulk(self, rows: list[Row]) -> None:
        (row,) = rows
        text = np.ascontiguousarray(self.table[0, :4096]) if self.table.shape[1] >= 4096 else np.resize(self.long, 4096)
        as_list = text.tolist()

        def ours() -> float:
            pool = sam_core.Pool(memory_bytes=MEMORY, rule="newest", sources=("request",))
            start = clock()
            pool.open(text, None)
            return 1e3 * (clock() - start)

        def python() -> float:
            sam = peers.PythonSam()
            start = clock()
            for token in as_list:
                sam.append(token)
            return 1e3 * (clock() - start)

        def arctic() -> float:
            trees = peers.arctic()(peers.DEPTH, 0)
            start = clock()
            trees.start_request(0, text)
            return 1e3 * (clock() - start)

        def ngram() -> float:  # has no index: the row of token ids is filled
            into = np.zeros((1, peers.MODEL_LEN), np.int32)
            start = clock()
            into[0, : len(as_list)] = as_list
            return 1e3 * (clock() - start)

        samples = {"ours": ours, "python": python, "ngram": ngram}
        if self.peer(row, "arctic", peers.arctic):
            samples["arctic"] = arctic
        _fill(row, alternate(samples, 5 * self.rounds))

    def memory_request(self, rows: list[Row]) -> None:
        (row,) = rows
        pool = sam_core.Pool(memory_bytes=MEMORY, rule="newest", sources=("request",))
        pool.open(self.long, None)
        row.ours = pool.stats()["bytes_used"] / len(self.long)
        tokens = self.long[:8192].tolist()  # tracing is slow
        tracemalloc.start()
        sam = peers.PythonSam()
        for token in tokens:
            sam.append(token)
        row.peers["python"] = tracemalloc.get_traced_memory()[0] / len(tokens)
        tracemalloc.stop()
        row.note = f"sequence of {len(self.long)}"
        if self.peer(row, "arctic", peers.arctic):
            local, _ = peers.ArcticBatch(self.long[None], len(self.long)).bytes()
            row.peers["arctic"] = local / len(self.long)

    def memory_group(self, rows: list[Row]) -> None:
        (row,) = rows
        size = min(8192, self.long.size)
        if self.peer(row, "arctic", peers.arctic):
            row.peers["arctic"] = sum(peers.ArcticBatch(self.table[:SIBLINGS], size).bytes()) / (SIBLINGS * size)
        row.note = f"a group of {SIBLINGS} answers of {size} tokens"
        batch = SamBatch(self.table[:SIBLINGS], size, True, rule="blend", sources=("request", "group"))
        row.ours = batch.pool.stats()["bytes_used"] / (SIBLINGS * size)

    def corpus(self, rows: list[Row]) -> None:
        texts, remark = self.texts.collection(self.corpus_size)
        tokens = sum(map(len, texts))
        with tempfile.TemporaryDirectory(prefix="sam-core-bench-") as folder:
            start = clock()
            path = replay.build_corpus(texts, folder)
            rows[1].ours = tokens / (clock() - start)
            rows[0].ours = Path(path).stat().st_size / tokens
            del texts
            batch = SamBatch(self.table, self.warm, False, rule="blend", sources=("request",), corpus=path)
            batch.step(1)

            def sample() -> float:
                start = clock()
                for _ in range(self.steps):
                    batch.step(1)
                return 1e6 * (clock() - start) / self.steps / BATCH

            rows[2].ours = alternate({"ours": sample}, self.rounds)["ours"]
        rows[0].note = rows[1].note = f"{tokens:,} tokens: {remark}"
        rows[2].note = "a row of a batch; the request's own index is searched too"
        rows[2].peers["REST (published)"] = "< 1000"

    # ---- overhead

    def empty_calls(self) -> dict[str, float]:
        """Microseconds of calls that do nothing: a loop, a step without rows, a step of a batch without work."""
        pool = sam_core.Pool(rule="newest", sources=("request",))
        empty, out = np.empty(0, np.int32), np.empty((0, 3), np.int32)
        rows = np.array([pool.open([], None) for _ in range(BATCH)], np.int32)
        zeros, wide, lengths = np.zeros(BATCH, np.int32), np.empty((BATCH, 3), np.int32), np.empty(BATCH, np.int32)
        one = np.zeros(1, np.int32)
        calls = {
            "python function": lambda: None,
            "step of 0 rows": lambda: pool.step(empty, empty, empty, 3, out, empty),
            "step of 1 row": lambda: pool.step(rows[:1], empty, one, 0, wide[:1], lengths[:1]),
            f"step of {BATCH} rows": lambda: pool.step(rows, empty, zeros, 0, wide, lengths),
        }

        def sample(call: Callable[[], None]) -> Sample:
            def run() -> float:
                start = clock()
                for _ in range(10_000):
                    call()
                return 1e6 * (clock() - start) / 10_000

            return run

        return alternate({name: sample(call) for name, call in calls.items()}, self.rounds)


def _fill(row: Row, values: dict[str, float]) -> None:
    row.ours = values.pop("ours")
    row.peers |= values
