# SPDX-License-Identifier: Apache-2.0
"""job_state reads a job's log and steps; its reads raise TimeoutError if the storage does not answer."""

import concurrent.futures
import json
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
    os.close(os.open(pipe, os.O_WRONLY))  # ends the read
    assert job_state.within(5, lambda: 1) == 1
    with pytest.raises(FileNotFoundError):
        job_state.within(5, lambda: os.stat(tmp_path / "none"))


def test_a_step_is_finished_when_its_last_line_is_logged_whole(tmp_path):
    log = tmp_path / "steps.jsonl"
    assert job_state.finished_step(None) == job_state.finished_step(log) == 0
    rows = [{"step": 4, "data": {"timing_s/step": 1.0}}, {"step": 5, "data": {"critic/rewards/mean": 1.0}}]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert job_state.finished_step(log) == 4
    with log.open("a") as file:
        file.write(json.dumps({"step": 5, "data": {"timing_s/step": 1.0}}))
        file.flush()
        assert job_state.finished_step(log) == 4
        file.write("\n")
    assert job_state.finished_step(log) == 5
    with log.open("a") as file:
        file.write(json.dumps({"step": 6, "data": {"pad": "x" * job_state.BLOCK, "timing_s/step": 1.0}}) + "\n")
        file.write(json.dumps({"step": 7, "data": {"timing_s/step": 1.0}}) + "\n")
    assert job_state.finished_step(log) == 7
