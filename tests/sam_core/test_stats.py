# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sam_core import stats


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stats.time, "time", lambda: now[0])
    monkeypatch.setattr(stats.time, "monotonic", lambda: now[0] - 40)
    return now


def record(log, running, tokens, drafted=None, accepted=0, left=1):
    spec = None if drafted is None else SimpleNamespace(num_draft_tokens=drafted, num_accepted_tokens=accepted)
    scheduler = SimpleNamespace(num_running_reqs=left, num_waiting_reqs=0, spec_decoding_stats=spec)
    iteration = SimpleNamespace(
        time_to_first_tokens_iter=[], inter_token_latencies_iter=[0.0] * running, num_generation_tokens=tokens
    )
    log.record(scheduler, iteration)


def test_sums_tail_and_idleness(clock, monkeypatch):
    monkeypatch.setenv(stats.ENV_THRESHOLD, "2")
    log = stats.StepLog()
    for seconds, running, tokens, left in [(1, 3, 3, 3), (2, 3, 3, 2), (4, 2, 5, 1), (8, 1, 2, 0), (50, 1, 1, 1)]:
        clock[0] += seconds
        record(log, running, tokens, drafted=4, accepted=tokens - running, left=left)
    assert {name: n for name, n in log.take(None).items() if name != stats.CPU} == {
        "decode_steps": 5,
        "request_steps": 10,
        "tokens": 14,
        "drafted": 20,
        "accepted": 4,
        "busy_s": 14,  # the first step and the one after idleness have no start
        "tail_s": 12,
        "tail_tokens": 8,
    }
    assert set(log.take(None).values()) == {0}


def test_drafter_counters_are_differences_and_its_levels_are_not():
    log = stats.StepLog()
    before = {"steps": 5, "steps_on": 1, "draft_s": 0.5, "requests": 3, "bytes_used": 100}
    after = {"steps": 9, "steps_on": 4, "draft_s": 0.7, "requests": 1, "bytes_used": 70}
    log.take(before)
    taken = log.take(after)
    assert (taken["sam_steps"], taken["sam_steps_on"], taken["sam_requests"], taken["sam_bytes_used"]) == (4, 3, 1, 70)
    assert taken["sam_draft_s"] == pytest.approx(0.2)


def test_positions_are_counted_in_bins_of_the_answer():
    positions = stats.Positions()
    positions.add([0, 127, 128, 255], [1, 4, 2, 3])
    positions.add(np.array([32767, 32768, 10**6]), np.array([1, 2, 4]))
    positions.add([], [])
    counts = {name: n for name, n in positions.counts().items() if n}
    assert counts == {
        **{"steps_from_0": 2, "tokens_from_0": 5, "steps_from_128": 2, "tokens_from_128": 5},
        **{"steps_from_16384": 1, "tokens_from_16384": 1, "steps_from_32768": 2, "tokens_from_32768": 6},
    }


def test_metrics_over_replicas():
    row = dict.fromkeys(stats.SUMS, 0) | {"tokens": 30, "request_steps": 20, "drafted": 40, "accepted": 10, "tail_s": 3}
    drafter = {"sam_steps": 10, "sam_steps_on": 5, "sam_draft_s": 0.02, "sam_proposed": 44}
    drafter |= {"sam_proposed_group": 4, "sam_accepted_group": 3, "sam_evicted_history": 2}
    drafter |= {"sam_steps_from_0": 0, "sam_tokens_from_0": 0, "sam_steps_from_128": 3, "sam_tokens_from_128": 5}
    metrics = stats.step_metrics([row | drafter, row | drafter | {"tail_s": 5}])
    assert metrics["rollout/spec/tokens_per_step"] == 1.5
    assert metrics["rollout/spec/acceptance_rate"] == 0.25
    assert metrics["rollout/spec/padding"] == 0
    padded = stats.step_metrics([row | drafter | {"sam_padding": 20, "sam_padding_accepted": 1}])
    assert padded["rollout/spec/acceptance_rate"] == 0.45  # (10 - 1) / (40 - 20)
    assert metrics["rollout/spec/switch_on_share"] == 0.5
    assert metrics["rollout/spec/draft_ms"] == pytest.approx(2)
    assert metrics["rollout/spec/tail_s"] == 5
    assert metrics["rollout/spec/drafted"] == 80
    assert metrics["rollout/spec/proposed_group"] == 8
    assert metrics["rollout/spec/accepted_group"] == 6
    assert metrics["rollout/spec/evicted_history"] == 4
    assert (metrics["rollout/spec/steps_from_128"], metrics["rollout/spec/tokens_from_128"]) == (6, 10)
    assert "rollout/spec/steps_from_0" not in metrics
    assert "rollout/spec/switch_on_share" not in stats.step_metrics([row])


def test_rows_are_written_when_taken(clock, monkeypatch, tmp_path):
    monkeypatch.setenv(stats.ENV_LOG, str(tmp_path / "run"))
    log = stats.StepLog(replica=3)
    record(log, 2, 2)
    clock[0] += 0.25
    record(log, 2, 3, drafted=6, accepted=1)
    log.take(None)
    record(log, 1, 1)
    log.take(None)
    rows = [json.loads(line) for line in (tmp_path / "run" / "engine-3.jsonl").read_text().splitlines()]
    assert rows[1] == [100.0, 0.25, 2, 3, 6, 1]
    assert len(rows) == 3


class Process:
    """One of psutil's, whose CPU time is the clock's, so many times."""

    def __init__(self, clock, times):
        self.clock, self.times = clock, times

    def cpu_times(self):
        return SimpleNamespace(user=self.times * self.clock[0], system=0.0)


def test_cpu_seconds_are_those_of_busy_spans(clock, monkeypatch):
    """10 s of idleness count nothing; the tree is looked up anew after each take, in the middle of a span as well."""
    trees = [[Process(clock, 2)], [Process(clock, 2), Process(clock, 1)]]
    monkeypatch.setattr(stats, "psutil", SimpleNamespace(Error=KeyError))
    monkeypatch.setattr(stats, "process_tree", lambda: trees.pop(0))
    log = stats.StepLog()
    for seconds, running in [(5, 2), (1, 2), (1, 0), (10, 0), (10, 1), (1, 1)]:
        clock[0] += seconds
        record(log, running, running, left=running)
    assert log.take(None)["cpu_s"] == 2 * (1 + 1 + 1)
    clock[0] += 1
    record(log, 0, 0, left=0)
    clock[0] += 10
    assert log.take(None)["cpu_s"] == 3 and not trees
    metrics = stats.step_metrics([taken(cpu_s=2), taken(cpu_s=3)])
    assert metrics["rollout/spec/cpu_s"] == 5
    assert "rollout/spec/cpu_s" not in stats.step_metrics([taken()])


def test_cpu_seconds_of_real_processes():
    psutil = pytest.importorskip("psutil")
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        processes = [p for p in stats.process_tree() if p.pid in (os.getpid(), child.pid)]
        assert len(processes) == 2
        before, end = stats.cpu_seconds(processes), time.monotonic() + 20
        while stats.cpu_seconds(processes) < before + 0.2:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert stats.cpu_seconds([psutil.Process(), *processes]) > 0, "the one that has ended is passed over"


def test_dropped_steps_are_in_no_sum_and_no_row(clock, monkeypatch, tmp_path):
    monkeypatch.setenv(stats.ENV_LOG, str(tmp_path))
    log = stats.StepLog()
    record(log, 2, 2)
    log.take(None, write=False)
    clock[0] += 1
    record(log, 1, 1)
    assert log.take(None)["tokens"] == 1
    assert len((tmp_path / "engine-0.jsonl").read_text().splitlines()) == 1


def test_rows_that_nobody_takes_do_not_grow_without_bound(monkeypatch, tmp_path):
    monkeypatch.setenv(stats.ENV_LOG, str(tmp_path))
    monkeypatch.setattr(stats, "ROWS_KEPT", 10)
    log = stats.StepLog()
    for _ in range(25):
        record(log, 1, 1)
    assert len(log._rows) == 5
    assert len((tmp_path / "engine-0.jsonl").read_text().splitlines()) == 20


def test_a_log_that_cannot_be_written_is_given_up_with_a_warning(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv(stats.ENV_LOG, str(tmp_path / "file" / "folder"))
    log = stats.StepLog()
    record(log, 2, 2)
    assert log.take(None)["tokens"] == 2
    record(log, 1, 1)
    assert log.take(None)["tokens"] == 1
    assert len(caplog.messages) == 1 and "is not written any more: Not a directory" in caplog.messages[0]


def test_engine_index_as_vllm_0_11_passes_it(clock):
    log = stats.StepLog()
    scheduler = SimpleNamespace(num_running_reqs=1, num_waiting_reqs=0, spec_decoding_stats=None)
    for engine, seconds in [(0, 1), (1, 1), (0, 1), (1, 1)]:
        clock[0] += seconds
        log.record(scheduler, None, engine)
    assert log.take(None)["busy_s"] == 4  # two engines, each 2 s after its own last step


def taken(drafted=40, steps_on=5, **other):
    drafter = {"sam_steps": 10, "sam_steps_on": steps_on, "sam_proposed": 44, "sam_bytes_used": 100}
    return dict.fromkeys(stats.SUMS, 0) | {"drafted": drafted, "busy_s": 2} | drafter | other


def test_rollouts_of_a_step_are_summed_by_replica():
    meta_info = {"timing": {}, "temperature": 1.0}
    for replica, rollout in [(0, 6), (1, 6), (0, 7), (1, 7)]:
        meta_info |= stats.rollout_meta(
            replica, rollout, taken(busy_s=replica + 1, sam_bytes_used=10 * rollout + replica)
        )
    metrics = stats.rollout_metrics(meta_info)
    assert metrics["rollout/spec/drafted"] == 160
    assert metrics["rollout/spec/busy_s"] == 4
    assert metrics["rollout/spec/index_bytes"] == 71
    assert metrics["rollout/spec/switch_on_share"] == 0.5
    assert stats.rollout_metrics({"timing": {}}) == {}


def test_a_step_that_asked_for_drafts_and_verified_none_says_so(caplog):
    stats.step_metrics([taken(), taken(drafted=0)])
    stats.step_metrics([dict.fromkeys(stats.SUMS, 0)])  # did not ask
    assert not caplog.messages
    stats.step_metrics([taken(drafted=0, steps_on=2), taken(drafted=0, steps_on=1)])
    assert caplog.records[0].levelname == "WARNING"
    assert "no draft was verified" in caplog.messages[0]
    assert "88 tokens were proposed, and drafting was on in 3 of 20 engine steps" in caplog.messages[0]


def test_answers_are_logged_only_where_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv(stats.ENV_LOG, str(tmp_path / "run"))
    stats.log_answer((1, 2, 3), [5, 6], [7, 8], [-0.5, -0.12345678])
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv(stats.ENV_ANSWERS, "1")
    stats.log_answer((1, 2, 3), [5, 6], [7, 8], [-0.5, -0.12345678])
    stats.log_answer((1, 2, 4), [5, 6], [7], None)
    (path,) = (tmp_path / "run").iterdir()
    first, second = map(json.loads, path.read_text().splitlines())
    assert first[:3] + first[4:] == [1, 2, 3, [7, 8], [-0.5, -0.1234568]]
    assert second == [1, 2, 4, first[3], [7], None]
