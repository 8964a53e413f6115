# SPDX-License-Identifier: Apache-2.0
"""Threads that share a pool, one of which saves it: no data race, no text freed under the writer, no long wait. Threads
of one step: the same results as without them."""

import os
import shutil
import subprocess
import threading

import numpy as np
import pytest
from c_programs import CC, CORE, CSRC, ENVIRONMENT, HERE, need_sanitizers
from sam_core.proposer import SamProposer

from sam_core import Pool


@pytest.mark.parametrize("sanitize", ["thread", "address,undefined"])
@pytest.mark.parametrize("name", ["test_threads", "test_rows"])
def test_threads_under_sanitizers(name, sanitize, tmp_path):
    need_sanitizers(tmp_path, CC, sanitize)
    program, sources = tmp_path / name, [CSRC / name for name in CORE]
    flags = ["-std=c11", "-O1", "-g", "-pthread", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-I", CSRC]
    built = subprocess.run([CC, *flags, HERE / f"{name}.c", *sources, "-o", program], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    fixed = [shutil.which("setarch"), "-R"] if shutil.which("setarch") else []  # ThreadSanitizer needs its addresses
    less = ["20"] if sanitize == "thread" and name == "test_rows" else []  # turns: ThreadSanitizer is slow
    done = subprocess.run([*fixed, program, *less], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_number_of_threads():
    pool = Pool()
    assert pool.num_threads == 1
    pool.num_threads = 16
    assert pool.num_threads == 16
    for count in (0, 17, -1, 1 << 70):
        with pytest.raises(ValueError, match=f"num_threads is {count}: it must lie between 1 and 16"):
            pool.num_threads = count
    with pytest.raises(TypeError):
        pool.num_threads = "2"
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del pool.num_threads
    assert pool.num_threads == 16


def test_the_proposer_uses_the_processors_of_its_process():
    proposer = SamProposer(3, None, max_model_len=64)
    assert proposer.pool.num_threads == min(8, len(os.sched_getaffinity(0)))


def test_other_calls_go_on_while_a_file_is_written(tmp_path):
    """They were counted, not timed: a call that waits for the file makes it one or two."""
    pool, calls, stop = Pool(rule="newest", sources=("group", "history")), [0], threading.Event()
    text = np.random.default_rng(1).integers(0, 1000, 4000).astype(np.int32)
    for number in range(1000):
        slot = pool.open([number])
        pool.append(slot, text)
        pool.close(slot)
    slot = pool.open([1, 2, 3], None)

    def append():
        while not stop.is_set():
            pool.append(slot, [1])
            calls[0] += 1

    thread = threading.Thread(target=append)
    thread.start()
    try:
        before = calls[0]
        pool.save(tmp_path / "pool")
        during = calls[0] - before
    finally:
        stop.set()
        thread.join()
    assert during > 20 and Pool.describe(tmp_path / "pool")["texts"] == 1000
