# SPDX-License-Identifier: Apache-2.0
import json
import os
from types import SimpleNamespace

import pytest
from sam_core.engines.vllm import step_log


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(step_log.time, "time", lambda: now[0])
    monkeypatch.setattr(step_log.time, "monotonic", lambda: now[0] - 40)
    return now


def record(log, running, tokens, drafted=None, accepted=0, left=1, engine=0):
    spec = SimpleNamespace(num_drafts=2, num_draft_tokens=drafted, num_accepted_tokens=accepted)
    spec = spec if drafted is not None else None
    scheduler = SimpleNamespace(num_running_reqs=left, num_waiting_reqs=0, spec_decoding_stats=spec)
    latencies = {"time_to_first_tokens_iter": [], "inter_token_latencies_iter": [0.0] * running}
    iteration = SimpleNamespace(num_generation_tokens=tokens, **latencies)
    log.record(scheduler, iteration, engine_idx=engine)


def test_sums_tail_and_idleness(clock, monkeypatch):
    monkeypatch.setenv(step_log.ENV_THRESHOLD, "2")
    log = step_log.StepLog()
    for seconds, running, tokens, left in [(1, 3, 3, 3), (2, 3, 3, 2), (4, 2, 5, 1), (8, 1, 2, 0), (50, 1, 1, 1)]:
        clock[0] += seconds
        record(log, running, tokens, drafted=4, accepted=tokens - running, left=left)
    expected = {"decode_steps": 5, "request_steps": 10, "tokens": 14, "drafts": 10, "drafted": 20, "accepted": 4}
    expected |= {"busy_s": 14, "tail_s": 12, "tail_tokens": 8}  # first steps, also after idleness, have no start
    assert {name: n for name, n in log.take(None).items() if name != step_log.CPU} == expected
    assert set(log.take(None).values()) == {0}
    log = step_log.StepLog()  # the log of two engines that run at the same time
    for engine, running in [(0, 9), (1, 1)] * 3 + [(1, 1)]:
        clock[0] += 1
        record(log, running, running, engine=engine)
    sums = log.take(None)
    assert (sums["decode_steps"], sums["tokens"], sums["tail_tokens"]) == (7, 31, 4)
    assert (sums["busy_s"], sums["tail_s"]) == (5, 5)


def test_drafter_counters_are_differences_and_its_levels_are_not():
    log = step_log.StepLog()
    log.take({"steps": 5, "steps_on": 1, "draft_s": 0.5, "requests": 3, "bytes_used": 100})
    taken = log.take({"steps": 9, "steps_on": 4, "draft_s": 0.75, "requests": 1, "bytes_used": 70})
    expected = {"sam_steps": 4, "sam_steps_on": 3, "sam_draft_s": 0.25, "sam_requests": 1, "sam_bytes_used": 70}
    assert expected.items() <= taken.items()


def test_rows_are_written_when_taken(clock, monkeypatch, tmp_path):
    monkeypatch.setenv(step_log.ENV_LOG, str(tmp_path / "run"))
    monkeypatch.setattr(step_log, "MAX_ROWS", 10)
    log = step_log.StepLog(replica=3)
    record(log, 2, 2)
    clock[0] += 0.25
    record(log, 2, 3, drafted=6, accepted=1)
    log.take(None)
    for _ in range(26):
        record(log, 1, 1)
    rows = [json.loads(line) for line in (tmp_path / "run" / "engine-3.jsonl").read_text().splitlines()]
    assert rows[1] == [100.0, 0.25, 2, 3, 6, 1] and len(rows) == 2 + 20, "they do not wait for ever"


def test_steps_renew_the_time_of_the_file_before_rows_are_written(clock, monkeypatch, tmp_path):
    monkeypatch.setenv(step_log.ENV_LOG, str(tmp_path))
    log, file = step_log.StepLog(), tmp_path / "engine-0.jsonl"
    for seconds, renewed in ((0, True), (1, False), (step_log.BEAT, True)):
        clock[0] += seconds
        if file.exists():
            os.utime(file, (1, 1))
        record(log, 1, 1)
        assert (file.stat().st_mtime > 1) is renewed and not file.read_text()


def test_a_log_that_cannot_be_written_is_given_up_with_a_warning(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv(step_log.ENV_LOG, str(tmp_path / "file" / "folder"))
    log = step_log.StepLog()
    record(log, 2, 2)
    assert log.take(None)["tokens"] == 2
    record(log, 1, 1)
    assert log.take(None)["tokens"] == 1
    assert len(caplog.messages) == 1 and "is not written any more: Not a directory" in caplog.messages[0]
