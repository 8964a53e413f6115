# SPDX-License-Identifier: Apache-2.0
"""Threads of one step, and threads that share a pool. test_threads.c looks for data races."""

import os
import signal

import numpy as np
import pytest
from sam_core.proposer import SamProposer

from sam_core import Pool


def test_number_of_threads():
    pool = Pool()
    assert pool.num_threads == 1
    pool.num_threads = 16
    assert pool.num_threads == 16
    for count in (0, 17, 1 << 70):
        with pytest.raises(ValueError, match=f"num_threads is {count}: it must lie between 1 and 16"):
            pool.num_threads = count
    assert pool.num_threads == 16


def large_step(pool: Pool) -> None:
    """A step of 512 rows, for which four threads pay."""
    slots = np.array([pool.open([number], None) for number in range(512)], np.int32)
    ones, out = np.ones(len(slots), np.int32), np.empty((len(slots), 1), np.int32)
    for token in (1, 2, 1):
        pool.step(slots, np.full(len(slots), token, np.int32), ones, 1, out, np.empty(len(slots), np.int32))


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_threads_wait_for_the_next_step_and_end_with_the_pool():
    pool, before = Pool(), threads()
    pool.num_threads = 4
    large_step(pool)
    started = threads() - before
    assert len(started) == 3
    for thread in started:
        with open(f"/proc/self/task/{thread}/status") as status:
            blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
        assert blocked & 1 << signal.SIGINT - 1
    pool.num_threads = 2
    large_step(pool)
    assert threads() - before == started
    del pool
    assert not threads() & started


def test_a_fork_frees_a_pool_without_its_threads():
    pool = Pool()
    pool.num_threads = 4
    large_step(pool)
    child = os.fork()
    if not child:
        signal.alarm(20)
        del pool
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    large_step(pool)


def test_the_proposer_uses_the_processors_of_its_process():
    proposer = SamProposer(3, None, max_model_len=64)
    assert proposer.pool.num_threads == min(8, len(os.sched_getaffinity(0)))
