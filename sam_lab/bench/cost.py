# SPDX-License-Identifier: Apache-2.0
"""Time and memory: sam_core and its peers, called from Python with preallocated buffers.

The clock is the processor time of all threads of the process; other processes compete only for caches. Nothing is
subtracted: a figure includes the call from Python and its share of the loop around it.
"""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sam_core
from sam_lab.automaton import Automaton
from sam_lab.bench import peers
from sam_lab.bench.ours import MEMORY, RULES, Engine, SamBatch, feed
from sam_lab.bench.peers import sglang
from sam_lab.bench.rows import Figure, Row, alternate, bounded
from sam_lab.bench.texts import SIBLINGS, collection, ordinary
from sam_lab.cli import LabError
from sam_lab.recordings import temporary_corpus

SECTION = "time and memory"
BATCH = 64
PEER_ROWS = 8  # the cost per request of a peer that loops over requests does not depend on their number
REQUESTS = 1024
SWITCHES: dict[str, dict[str, Any]] = {"on": {"switch": "batch", "threshold": REQUESTS}, "auto": {"switch": "auto"}}
clock = time.process_time


def seconds(call: Callable, *args: Any) -> float:
    """Processor time of one call, in seconds."""
    start = clock()
    call(*args)
    return clock() - start


def microseconds(call: Callable[[], Any], count: int) -> float:
    """Microseconds per call, the mean of `count` calls."""
    start = clock()
    for _ in range(count):
        call()
    return 1e6 * (clock() - start) / count


class CostBench:
    """The measurements of time and memory; `quick` makes all of them small."""

    def __init__(self, quick: bool, progress: Callable[[str], None]):
        self.rounds = 2 if quick else 7
        self.sizes = (256, 1024) if quick else (1024, 4096, 32_768)
        self.steps = 20 if quick else 100
        self.running = 256 if quick else 1024
        """Tokens of a request at the start of the proposer's rows."""
        self.warm = 256 if quick else 4096
        self.corpus_size = 100_000 if quick else 10_000_000
        self.history_size, self.num_history_steps = (200_000, 40) if quick else (20_000_000, 2000)
        self.progress = progress
        self.more = self.steps * (self.rounds + 2)
        """Tokens that are appended to a row after a batch was filled."""
        longest = self.sizes[-1]
        self.table = ordinary(BATCH, longest + self.more)
        self.long = self.table[0, :longest]

    def rows(self) -> list[tuple[list[Row], Callable[[list[Row]], None]]]:
        """Bundles of rows, each with the function that measures it."""

        def row(what: str, unit: str) -> Row:
            return bounded(SECTION, what, unit)

        drafts = [row(f"draft k=3, {rule}", "us") for rule in RULES]
        steps = [row(f"step of {BATCH} rows, ordinary text, {rule}", "us") for rule in RULES]
        waits = [row(f"propose for {REQUESTS} requests, {name}: waiting", "us") for name in SWITCHES]
        return [
            ([row("append", "us")], self.append_calls),
            ([row("append, longest pause", "us")], self.append_pauses),
            ([row("step with a large history, 64 rows, p99.9", "ms")], self.history_steps),
            (drafts, self.drafts),
            (steps, self.steps_of),
            (waits, self.waits),
            ([row("propose for 512 requests, auto: deciding", "us")], self.deciding),
            ([row("memory, request", "bytes per token")], self.memory_request),
            ([row("memory, request and group with counts", "bytes per token")], self.memory_group),
            ([row("corpus, look-up (append and draft k=1)", "us")], self.corpus),
        ]

    def batches(self, rows: list[Row], names: Iterable[str], table: np.ndarray, size: int) -> dict[str, Any]:
        """The peers' batches of a table. If a peer is not available, the rows get the reason."""
        batches = {name: self.available(rows, name, partial(peers.BATCHES[name], table, size)) for name in names}
        return {name: batch for name, batch in batches.items() if batch}

    def available(self, rows: list[Row], name: str, probe: Callable[[], Any]) -> Any:
        """The result of `probe` for a peer; None if it is not available, and the rows get the reason."""
        try:
            return probe()
        except LabError as error:
            for row in rows:
                row.peers[name] = str(error)
            return None

    # ---- appending

    def appending(self, rows: list[Row]) -> dict[str, tuple[Callable, list]]:
        """For each available contestant a factory of append functions, and the arguments of their calls in order."""
        parts = [self.long[at : at + 64] for at in range(0, len(self.long), 64)]

        def ours() -> Callable[[np.ndarray], None]:
            pool = sam_core.Pool(memory_bytes=MEMORY, **RULES["newest"])
            return partial(pool.append, pool.open([], None))

        def arctic() -> Callable[[np.ndarray], None]:
            trees = peers.arctic()(peers.DEPTH)
            trees.start_request(0, self.long[:1])
            return partial(trees.add_active_response, 0)

        contestants: dict[str, tuple[Callable, list]] = {
            "ours": (ours, parts),
            "python": (lambda: Automaton().append, self.long.tolist()),
        }
        if self.available(rows, "arctic", peers.arctic):
            contestants["arctic"] = arctic, parts
        return contestants

    def append_calls(self, rows: list[Row]) -> None:
        (row,) = rows

        def together(make: Callable, items: list) -> float:
            append = make()
            start = clock()
            for item in items:
                append(item)
            return 1e6 * (clock() - start) / len(self.long)

        def of_batch(batch: Any) -> float:  # the next tokens of a batch that has taken in some
            return microseconds(batch.append, self.steps) / PEER_ROWS

        samples = {name: partial(together, *how) for name, how in self.appending(rows).items()}
        small = self.table[:PEER_ROWS, : self.warm + self.more]
        for name, batch in self.batches(rows, ("ngram", "sglang"), small, self.warm).items():
            samples[name] = partial(of_batch, batch)
        _fill(row, alternate(samples, self.rounds))
        row.note = f"a sequence of {len(self.long)} tokens, 64 in a call, in plain Python one"

    def append_pauses(self, rows: list[Row]) -> None:
        (row,) = rows

        def longest(make: Callable, items: list) -> float:
            append = make()
            return 1e6 * max(seconds(append, item) for item in items)

        samples = {name: partial(longest, *how) for name, how in self.appending(rows).items()}
        _fill(row, alternate(samples, self.rounds))
        row.note = "the two readings of the clock around each call included"

    def history_steps(self, rows: list[Row]) -> None:
        """Steps while a history that was just loaded is indexed. Each counts with the faster of two runs: the same
        steps take long in both, unless the machine does other work."""
        (row,) = rows
        rng = np.random.default_rng(20)
        size = self.table.shape[1] // 2
        quickest = np.full(self.num_history_steps, np.inf)
        pool = sam_core.Pool(memory_bytes=8 * MEMORY)
        for number in range(self.history_size // size):
            text = self.table[number % BATCH, :size].copy()
            changed = rng.integers(0, size, size // 10)
            text[changed] = rng.permutation(text)[changed]
            pool.close(pool.open(text, b"%d" % (number % 8)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pool")
            pool.save(path)
            del pool
            for _ in range(2):
                pool = sam_core.Pool.load(path, 8 * MEMORY)
                slots = np.array([pool.open(self.table[at, :100], b"%d" % (at % 8)) for at in range(BATCH)], np.int32)
                counts, lengths = np.ones(BATCH, np.int32), np.zeros(BATCH, np.int32)
                out, starts = np.zeros((BATCH, 4), np.int32), np.full(BATCH, 100, np.int32)
                for step in range(self.num_history_steps):
                    if step == self.num_history_steps // 2:
                        pool.close(int(slots[-1]), keep=False)
                        slots[-1] = pool.open(self.table[BATCH - 1, : starts[-1]], b"%d" % ((BATCH - 1) % 8))
                    start = clock()
                    pool.step(slots, self.table, counts, 4, out, lengths, starts=starts)
                    quickest[step] = min(quickest[step], clock() - start)
                    starts += 1
        row.ours = Figure.of([1e3 * float(np.quantile(quickest, 0.999))])
        row.note = f"{self.history_size:,} tokens in 8 groups; "
        row.note += f"{self.num_history_steps} steps, in the middle one answer is removed"

    # ---- drafting

    def drafts(self, rows: list[Row]) -> None:
        """One append and one draft per step; only the draft is timed. A row gets the slowest of the sizes.

        With groups, one group runs in lock-step, as in a replay; `steps_of` measures steps of whole batches.
        """
        by_name: dict[str, dict[int, Figure]] = {}

        def sample(batch: Any) -> float:
            """Microseconds of a draft per row."""
            total = 0.0
            for _ in range(self.steps):
                batch.append()
                total += seconds(partial(batch.draft, 3))
            return 1e6 * total / self.steps / len(batch.table)

        for size in self.sizes:
            self.progress(f"drafts at {size} tokens")
            columns = slice(0, size + self.more)
            few, small = self.table[:SIBLINGS, columns], self.table[:PEER_ROWS, columns]
            tables = {rule: few if "group" in rule else self.table[:, columns] for rule in RULES}
            batches: dict[str, Any] = {rule: SamBatch(tables[rule], size, **RULES[rule]) for rule in RULES}
            batches |= self.batches(rows, peers.BATCHES, small, size)
            samples = {name: partial(sample, batch) for name, batch in batches.items()}
            alternate(samples, 1)  # compiles, warms
            for name, value in alternate(samples, self.rounds).items():
                by_name.setdefault(name, {})[size] = value
        slowest = {name: max(by_size.values()) for name, by_size in by_name.items()}
        others = {name: slowest[name] for name in peers.BATCHES if name in slowest}
        for row, rule in zip(rows, RULES, strict=True):
            sizes = ", ".join(f"{size}: {value.median:.3g}" for size, value in by_name[rule].items())
            _fill(row, {"ours": slowest[rule], **others})
            row.note = f"{SIBLINGS if 'group' in rule else BATCH} rows; at {sizes} tokens"

    def steps_of(self, rows: list[Row]) -> None:
        """Microseconds to append a token to each row of a batch and draft k=3."""
        size = self.warm
        table = self.table[:, : size + self.more]
        batches: dict[str, Any] = {rule: SamBatch(table, size, **options) for rule, options in RULES.items()}
        batches |= self.batches(rows, peers.BATCHES, table, size)

        def sample(batch: Any) -> float:
            def append_and_draft() -> None:
                batch.append()
                batch.draft(3)

            step = partial(batch.step, 3) if isinstance(batch, SamBatch) else append_and_draft
            return microseconds(step, self.steps)

        samples = {name: partial(sample, batch) for name, batch in batches.items()}
        alternate(samples, 1)
        figures = alternate(samples, self.rounds)
        others = {name: figures[name] for name in peers.BATCHES if name in figures}
        for row, rule in zip(rows, RULES, strict=True):
            _fill(row, {"ours": figures[rule], **others})
            row.note = f"after {size} tokens per row"

    def engine(self, count: int, switch: dict[str, Any]) -> Engine:
        """An engine that drafts 3 tokens per request and step, with a table that lasts for all rounds."""
        table = ordinary(count, self.running + 4 * self.steps * (self.rounds + 2) + 8)
        return Engine(table, self.running, 3, **switch)

    def waits(self, rows: list[Row]) -> None:
        """Microseconds until the drafts are ready; threads share the work, and tokens are indexed later."""
        engines = {name: self.engine(REQUESTS, switch) for name, switch in SWITCHES.items()}

        def sample(engine: Engine) -> float:
            return 1e6 * sum(engine.step() for _ in range(self.steps)) / self.steps

        samples = {name: partial(sample, engine) for name, engine in engines.items()}
        alternate(samples, 2)  # auto has learned then
        gc.freeze()  # as vLLM does when it has started: what lives on is not visited by collections
        figures = alternate(samples, self.rounds)
        gc.unfreeze()
        for row, (name, engine) in zip(rows, engines.items(), strict=True):
            row.ours = figures[name]
            row.note = f"{engine.proposer.texts.pool.num_threads} threads may share the work"

    def deciding(self, rows: list[Row]) -> None:
        """Microseconds that switch auto takes per step, including learning."""
        count = 512
        engine = self.engine(count, SWITCHES["auto"])
        switch, taken = engine.proposer.switch, [0.0]

        def timed(call: Callable, *args: Any) -> Any:
            start = clock()
            result = call(*args)
            taken[0] += clock() - start
            return result

        for name in ("observe", "should_draft", "choose"):
            setattr(switch, name, partial(timed, getattr(switch, name)))

        def sample() -> float:
            taken[0] = 0.0
            for _ in range(self.steps):
                engine.step()
            return 1e6 * taken[0] / self.steps

        alternate({"auto": sample}, 2)  # it has learned then
        before = engine.drafted
        rows[0].ours = alternate({"auto": sample}, self.rounds)["auto"]
        drafted = (engine.drafted - before) / self.rounds / self.steps / count
        rows[0].note = f"{drafted:.2f} draft tokens per request and step"

    # ---- memory, corpus

    def memory_request(self, rows: list[Row]) -> None:
        (row,) = rows
        size = len(self.long)
        texts = self.table[:, :size]
        pool = sam_core.Pool(memory_bytes=MEMORY, **RULES["newest"])
        feed(pool, np.array([pool.open(text, None) for text in texts], np.int32), texts.size)
        row.ours = Figure.of([pool.stats()["bytes_used"] / texts.size])
        tokens = self.long[:8192].tolist()  # tracing is slow
        tracemalloc.start()
        sam = Automaton()
        for token in tokens:
            sam.append(token)
        row.peers["python"] = Figure.of([tracemalloc.get_traced_memory()[0] / len(tokens)])
        tracemalloc.stop()
        row.peers["ngram"] = Figure.of([float(self.long.itemsize)])
        if self.available(rows, "arctic", peers.arctic):
            row.peers["arctic"] = Figure.of([peers.ArcticBatch(self.long[None], size).bytes()[0] / size])
        if self.available(rows, "sglang", sglang.corpus_class):
            row.peers["sglang"] = Figure.of([sglang.memory(self.long[None]) / size])
        row.note = f"{BATCH} requests of {size} tokens, of which the peers have one; ngram has the text alone"

    def memory_group(self, rows: list[Row]) -> None:
        (row,) = rows
        size = min(8192, len(self.long))
        table, total = self.table[:SIBLINGS, :size], SIBLINGS * size
        batch = SamBatch(table, size, **RULES["blend with group"])
        row.ours = Figure.of([batch.pool.stats()["bytes_used"] / total])
        if self.available(rows, "arctic", peers.arctic):
            row.peers["arctic"] = Figure.of([sum(peers.ArcticBatch(table, size).bytes()) / total])
        if self.available(rows, "sglang", sglang.corpus_class):
            row.peers["sglang"] = Figure.of([sglang.memory(table) / total])
        row.note = f"a group of {SIBLINGS} answers of {size} tokens"

    def corpus(self, rows: list[Row]) -> None:
        (row,) = rows
        with temporary_corpus(collection(self.corpus_size)) as path:
            table = self.table[:, : self.warm + self.more]
            batch = SamBatch(table, self.warm, sources=("request",), rule="blend", corpus=path)
            batch.step(1)
            step = partial(batch.step, 1)
            look_up = {"ours": lambda: microseconds(step, self.steps) / BATCH}
            row.ours = alternate(look_up, self.rounds)["ours"]
        row.note = f"{self.corpus_size:,} tokens; a row of a batch; the request's own index is searched too"
        row.peers["REST"] = "published: < 1000"


def _fill(row: Row, values: dict[str, Figure]) -> None:
    row.ours = values["ours"]
    row.peers |= {name: value for name, value in values.items() if name != "ours"}
