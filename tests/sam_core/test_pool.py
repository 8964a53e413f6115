# SPDX-License-Identifier: Apache-2.0
"""Tests of what a pool drafts, how long it remembers and what it forgets first, on examples to check by eye."""

import array
import copy
import importlib.util
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from sam_core.proposer import SamProposer
from steps import i32, step

import sam_core

A, B, C, D, E = range(5)


def make(rule="newest", **arguments):
    return sam_core.Pool(rule=rule, **arguments)


def draft(pool, slot, tokens=(), k=8, index_later=False):
    return step(pool, [(slot, tokens)], k, index_later=index_later)[0]


def test_append_takes_a_sequence_or_a_buffer():
    pools = make(), make()
    slots = [pool.open([A, B]) for pool in pools]
    for tokens in ([C, A], (B,), i32(C, A), array.array("i", [B]), [np.int64(C), True], range(0)):
        pools[0].append(slots[0], tokens)
    pools[1].append(slots[1], [C, A, B, C, A, B, C, 1])
    assert draft(pools[0], slots[0], [A, B]) == draft(pools[1], slots[1], [A, B]) == [C, 1, A, B]
    assert [pool.stats()["appended"] for pool in pools] == [10, 10]


def test_request_without_memory_drafts_again_as_soon_as_its_text_fits():
    """The request waits for a share of the memory for texts and indexes. Learning does not make this share larger."""
    pool = make("blend", sources=("request",), memory_bytes=make("blend").stats()["bytes_used"] + 250_000)
    text, slots = [*range(250)] * 2, []
    while not slots or draft(pool, slots[-1], [0]):
        slots.append(pool.open(text, None))
    assert len(slots) > 4 and pool.stats()["exhausted"] <= 1
    for slot in slots[:2]:
        pool.close(slot)
    assert draft(pool, slots[-1], [1])


@pytest.mark.parametrize("period", [1, 50])
@pytest.mark.parametrize(("rule", "most"), [("oldest", 4), ("newest", 280), ("suffix", 280)])
def test_long_repetition_loop_stays_fast(rule, most, period):
    """A walk up all links would take 10**7 steps or more; the largest length of a match prevents this."""
    pool, size, loop = make(rule), 34_000, np.arange(1000, 1000 + period, dtype=np.int32)
    slots = [pool.open(range(50)) for _ in range(2)]
    for slot in slots:
        pool.append(slot, np.resize(loop, size))
    assert pool._work() < most * size * 2
    for drafts in step(pool, [(slot, []) for slot in slots], 3):
        assert drafts[0] == loop[size % period]


def test_request_of_a_million_tokens():
    pool = make("blend", sources=("request",))
    tokens = np.random.default_rng(0).zipf(1.3, 1_000_000).clip(0, 50_000).astype(np.int32)
    slot = pool.open(tokens[:500_000])
    pool.append(slot, tokens[500_000:])
    stats = pool.stats()
    assert stats["tokens"] == 1_000_000 and stats["exhausted"] == 0 and stats["bytes_used"] < 150e6
    assert pool._work() < 30 * 1_000_000
    assert draft(pool, slot, tokens[1000:1020])[:2] == tokens[1020:1022].tolist()


def test_plain_buffers_serve_as_well_as_numpy():
    pool = make()
    slot = pool.open(memoryview(array.array("i", [A, B, C, A])))
    ints = [array.array("i", values) for values in ([slot], [B], [1])]
    out, lengths = array.array("i", [-1] * 4), array.array("i", [-1])
    scores = memoryview(array.array("f", [-1] * 4)).cast("B").cast("f", [1, 4])
    pool.step(*ints, np.int64(2), memoryview(out).cast("B").cast("i", [1, 4]), lengths, scores)
    assert (out.tolist(), lengths.tolist()) == ([C, A, -1, -1], [2])
    assert 0 < scores[0, 1] <= scores[0, 0] <= 1 and scores[0, 2] == -1
    with pytest.raises(ValueError):
        pool.step(*ints, 9, memoryview(out).cast("B").cast("i", [1, 4]), lengths)
    for buffer in [*ints, out, lengths]:
        buffer.append(0)  # no call keeps a reference to the buffer


def test_python():
    """Importing loads no NumPy; copies and, where Python has them by this name, subinterpreters are refused."""
    program = "import sys, sam_core; sam_core.Pool().open([1]); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    with pytest.raises(TypeError, match="a Pool can be neither pickled nor copied"):
        copy.copy(make())
    if importlib.util.find_spec("_xxsubinterpreters"):
        program = "import _xxsubinterpreters as i; i.run_string(i.create(), 'import sam_core')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 1 and "interpreter" in done.stderr


def test_child_of_a_fork_is_refused_and_makes_its_own(tmp_path):
    """The fork happens while another thread appends to the pool."""
    pool = make(sources=("request",))
    slot = pool.open([])
    tokens = np.random.default_rng(0).integers(0, 50, 1_000_000).astype(np.int32)
    thread = threading.Thread(target=pool.append, args=(slot, tokens))
    calls = [(pool.append, slot, 1), (draft, pool, slot, [B]), (pool.open, [A]), (pool.close, slot), (pool.drop, [A])]
    calls += [(pool.save, tmp_path / "pool"), (pool.stats,)]

    def child():
        for call, *arguments in calls:
            with pytest.raises(RuntimeError, match=f"this pool belongs to process {os.getppid()}, of which this one"):
                call(*arguments)
        own = make()
        return draft(own, own.open([A, B, A])) == [B, A]

    thread.start()
    assert thread.is_alive()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        done = False
        try:
            done = child()
        finally:
            os._exit(not done)  # in any case, the child must not continue as a second pytest
    assert os.waitpid(pid, 0)[1] == 0
    thread.join()
    assert pool.stats()["appended"] == 1_000_000


@pytest.mark.parametrize("what", ["step", "save"])
def test_other_threads_run_during_a_call(what, tmp_path):
    """A call that kept the GIL, or locked the pool to write a file, would let the other thread run once or twice."""
    pool, turns, stop = make(sources=("group", "history")), 0, threading.Event()
    tokens = np.random.default_rng(0).integers(0, 1000, 4_000_000 if what == "save" else 300_000).astype(np.int32)
    for number, part in enumerate(np.split(tokens, 1000) if what == "save" else ()):
        slot = pool.open([number])
        pool.append(slot, part)
        pool.close(slot)
    slot, other = pool.open([], None), pool.open([1, 2, 3], None)

    def run():
        nonlocal turns
        while not stop.is_set():
            turns += 1
            if what == "save":
                pool.append(other, [1])
            else:
                stop.wait(0.0005)

    thread, interval = threading.Thread(target=run), sys.getswitchinterval()
    if what == "step":
        sys.setswitchinterval(60)  # no thread loses the GIL unless its call releases it
    try:
        thread.start()
        before = turns
        if what == "save":
            pool.save(tmp_path / "pool")
        for _ in range(0 if what == "save" else 200):  # each step indexes a part
            pool.step(i32(slot), tokens, i32(len(tokens)), 0, np.empty((1, 0), np.int32), i32(0))
        assert turns - before > (20 if what == "save" else 2)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def large_step(pool) -> None:
    """Run three steps of 512 rows, which are enough for four threads to pay."""
    slots = np.array([pool.open([number], None) for number in range(512)], np.int32)
    ones, out = np.ones(len(slots), np.int32), np.empty((len(slots), 1), np.int32)
    for token in (1, 2, 1):
        pool.step(slots, token * ones, ones, 1, out, np.empty(len(slots), np.int32))


def test_threads_wait_for_the_next_step_and_end_with_the_pool():
    """A forked child has none of the threads."""
    processors = min(8, len(os.sched_getaffinity(0)))
    assert SamProposer(3, None, max_model_len=64).texts.pool.num_threads == processors

    def threads():
        return set(os.listdir("/proc/self/task"))

    pool, before = make("blend"), threads()
    pool.num_threads = 4
    for count in (0, 17, 1 << 70):
        with pytest.raises(ValueError, match=f"num_threads is {count}: it must lie between 1 and 16"):
            pool.num_threads = count
    large_step(pool)
    started = threads() - before
    assert len(started) == 3
    for thread in started:
        with open(f"/proc/self/task/{thread}/status") as status:
            blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
        assert blocked & 1 << signal.SIGINT - 1
    child = os.fork()
    if not child:
        signal.alarm(20)
        del pool
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.num_threads = 2
    large_step(pool)
    assert threads() - before == started
    del pool
    assert not threads() & started
