# SPDX-License-Identifier: Apache-2.0
"""Drafts one step late: what the host knows, what the device adds, and the benchmark's rows."""

import json
from array import array

import numpy as np
import pytest

from sam_lab import __main__ as lab
from sam_lab.bench.late import EarlyDrafter, LateDrafter
from sam_lab.drafters import SamDrafter
from sam_lab.recordings import Answer
from sam_lab.replay import replay


def test_the_host_is_a_step_late():
    """The pool lacks the tokens of the latest step, but the draft continues after them."""
    drafter = LateDrafter(3, 4, 64)
    drafter.start(0, [1, 2, 3, 4, 5, 1, 2], None)
    assert drafter.propose_many([0], 3) == [[3, 4, 5]]
    drafter.append_many([0], [[3, 4]])
    assert drafter.propose_many([0], 3) == [[5, 1, 2]]
    assert drafter.pool.stats()["appended"] == 0
    drafter.append_many([0], [[5, 9]])
    drafter.propose_many([0], 3)
    assert drafter.pool.stats()["appended"] == 2
    drafter.append_many([0], [[9]])
    drafter.finish(0)
    drafter.settle()
    assert drafter.pool.stats()["appended"] == 5 and not drafter.requests


class Crowd(SamDrafter):
    """Records the largest number of requests that ran in a step."""

    most = 0

    def propose_many(self, requests, k):
        self.most = max(self.most, len(requests))
        return super().propose_many(requests, k)


def test_all_tokens_are_replayed_and_groups_end():
    rng = np.random.default_rng(0)
    scopes = []
    for group in range(20):
        text = rng.integers(0, 50, 80)
        answer = Answer(array("i", text[:5]), array("i", np.tile(text, 2)), f"{group}", f"{group}", None)
        scopes.append([(answer, True)] * 4)
    for context in ("request", "group"):
        late, now = LateDrafter(4, 128, 200), Crowd()
        found = [replay(drafter, scopes, context, 4, running=64) for drafter in (late, now, EarlyDrafter())]
        assert [each["tokens"] for each in found] == [20 * 4 * 160] * 3
        steps = [each["steps"] for each in found]
        assert now.most == 64 and 0.8 < steps[1] / steps[0] < 1.5
        assert 0.98 < steps[1] / steps[2] < 1.02 and steps[1] != steps[2]
        late.settle()
        assert not late.requests and not late.slots and late.pool.stats()["groups"] == now.pool.stats()["groups"] == 0


@pytest.mark.slow
def test_quick_benchmark(tmp_path, capsys):
    status = lab.main(["bench-asynchronous", "--quick", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "bench-asynchronous.json").read_text())["rows"]
    assert len(rows) == 2 * 6 * 2 and all(row["ours"]["median"] > 0 for row in rows)
    assert status == any(row["verdict"] != "met" for row in rows)
    printed = capsys.readouterr().out
    assert all(row["what"] in printed for row in rows)
