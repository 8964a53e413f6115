# SPDX-License-Identifier: Apache-2.0
"""`make bench`: every row runs, verdict and exit status agree, and figures equal those computed by hand."""

import json
import os
import subprocess
import sys
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest

from sam_lab.bench import acceptance
from sam_lab.bench.acceptance import AcceptanceBench, Task
from sam_lab.bench.rows import Figure, Row, alternate, missed, targets
from sam_lab.cli import LabError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_quick_run_measures_every_row(tmp_path):
    command = [sys.executable, "-m", "sam_lab", "bench", "--quick", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    status, printed, rows = done.returncode, done.stdout, json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert {row["what"] for row in rows} == {*targets()} and len(rows) > 20
    for row in rows:
        assert row["error"] == "" and row["ours"]["low"] <= row["ours"]["median"] <= row["ours"]["high"], row["what"]
        assert row["ours"]["median"] > 0 and row["what"] in printed and row["reason"]
        absent = isinstance(row["peers"].get(row["of"]), str)  # the reason why it cannot run here
        assert (row["verdict"] == "FAILED") == absent, row["what"]
        assert row["better"] in ("<=", ">=")
    assert status == any(row["verdict"] in ("MISSED", "FAILED") for row in rows)
    assert f" of {len(rows)} targets met" in printed
    peers = {row["what"]: {*row["peers"]} for row in rows}
    alone = {"python", "ngram"}  # methods that know nothing of other requests
    assert peers["chain k=3, request, private"] == {"newest", "arctic", "sglang"} | alone
    assert peers["chain k=3, request, shared"] == {"newest", "arctic", "sglang"}
    assert peers["draft k=3, newest"] == {"python", "arctic", "ngram", "sglang"}


@pytest.mark.parametrize(("peer", "verdict"), [(4.0, "met"), (3.9, "MISSED"), (None, "FAILED")])
def test_bound_may_be_a_share_of_a_peer_in_the_same_run(peer, verdict):
    peers = {"other": Figure.of([peer]) if peer else "not available: no compiler"}
    row = Row("part", "what", "us", "<=", 0.5, "other", "a reason", Figure.of([2.0]), peers)
    assert row.verdict == verdict and row.target == "<= 0.5 x other"
    told = missed([row])
    assert told == "" if verdict == "met" else told.startswith(f"{verdict}: what: ") and "a reason" in told
    assert ("no compiler" in told) == (peer is None)


def test_contestants_take_turns_and_get_medians_and_quartiles():
    order, values = [], {"a": [1.0, 9.0, 2.0], "b": [5.0, 4.0, 60.0]}

    def sample(name):
        order.append(name)
        return values[name].pop(0)

    found = alternate({name: partial(sample, name) for name in "ab"}, 3)
    assert found == {"a": Figure(2.0, 1.5, 5.5), "b": Figure(5.0, 4.5, 32.5)} and order == [*"abbaab"]


def filled(figures, errors):
    """Return {words of a row: row} for {task: {set: tokens}} in 100 steps each; other tasks have 200 tokens."""
    found, rows = AcceptanceBench(True, print), {}
    for bundle, fill, wanted in found.rows():
        for task in wanted:
            sets = figures.get(task, {"x": 200, "y": 200})
            found.figures[task] = {n: {"steps": 100, "tokens": t} for n, t in sets.items()}
        found.errors |= errors
        try:
            fill(bundle)
        except LabError as error:
            bundle[0].error = str(error)
        rows |= {row.what: row for row in bundle}
    return rows


def test_figures_by_hand():
    """Means over the sets are geometric. A task that failed fails only its own rows."""
    task, rival, arctic = Task("blend", "request", 8), Task("sglang", "request", 8), Task("arctic", "request", 8)
    figures = {task: {"x": 400, "y": 200}, rival: {"x": 100, "y": 200}}
    rows = filled(figures, {Task("blend", "group", 8): "it broke", arctic: "not available: no compiler"})
    row = rows["chain k=8, request, shared"]
    assert astuple(row.ours) == pytest.approx((8**0.5, 2.5, 3.5)) and row.peers["sglang"].median == pytest.approx(
        2**0.5
    )
    assert row.peers["newest"].median == 2 and row.value == pytest.approx(2) and row.met
    assert row.peers["arctic"] == "not available: no compiler" and rows["chain k=8, request, private"].value == 1
    assert rows["chain k=8, group, shared"].error == "it broke" and not rows["chain k=8, group, shared"].met


def die(*task):
    os._exit(9)


def test_a_worker_that_is_killed_fails_its_rows_alone(monkeypatch):
    found, task = AcceptanceBench(True, print), Task("newest", "request", 3)
    monkeypatch.setattr(acceptance, "run_task", die)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found.measure([task])
    with pytest.raises(LabError, match="a process that measured acceptance died"):
        found.figure(task)
