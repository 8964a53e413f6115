# SPDX-License-Identifier: Apache-2.0
"""What is read of a job's files, and that storage which does not answer ends no playbook without a sentence."""

import concurrent.futures
import os

import pytest
from ansible_collections.sam_rl.ascend.plugins.modules import job_state


def test_new_lines(tmp_path):
    log = tmp_path / "log"
    assert job_state.new_lines(log, -1) == ([], 0)
    log.write_text("one\ntwo\nthr")
    assert job_state.new_lines(log, 0) == (["one", "two"], 8)
    assert job_state.new_lines(log, 8) == ([], 8)
    log.write_text("new\n")
    assert job_state.new_lines(log, 8) == (["new"], 4), "the file was truncated"


def test_a_read_that_hangs_ends(tmp_path):
    """A pipe without a writer stands for a file on a server that does not answer."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    with pytest.raises(concurrent.futures.TimeoutError):
        job_state.within(0.2, lambda: job_state.new_lines(pipe, 0))
    os.close(os.open(pipe, os.O_WRONLY))  # the read ends
    assert job_state.within(5, lambda: 1) == 1
    with pytest.raises(FileNotFoundError):
        job_state.within(5, lambda: os.stat(tmp_path / "none"))
