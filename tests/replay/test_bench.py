# SPDX-License-Identifier: Apache-2.0
"""`make bench`: every row runs, the verdict and the exit status agree, and its arithmetic by hand."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from sam_lab.bench import acceptance
from sam_lab.bench.acceptance import NEWEST, SWEEP, AcceptanceBench, Task
from sam_lab.bench.rows import TARGETS, Figure, Row, Targets, alternate, as_json, missed
from sam_lab.cli import LabError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "sam_lab", "bench", "--quick"]


def run(folder, *words):
    """Exit status, output and rows of a quick run."""
    done = subprocess.run([*COMMAND, "--out", folder, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout, json.loads((folder / "bench.json").read_text())["rows"]


def test_quick_run_measures_every_row(tmp_path):
    status, printed, rows = run(tmp_path)
    assert {row["what"] for row in rows} == {*Targets(TARGETS).entries} and len(rows) > 40
    for row in rows:
        assert row["error"] == "" and row["ours"]["low"] <= row["ours"]["median"] <= row["ours"]["high"], row["what"]
        assert row["ours"]["median"] > 0 and row["what"] in printed and row["reason"]
        absent = isinstance(row["peers"].get(row["of"]), str)  # why it cannot run here
        assert (row["verdict"] == "FAILED") == absent, row["what"]
        assert (row["verdict"] == "recorded") == (row["bound"] is None)
    assert status == any(row["verdict"] in ("MISSED", "FAILED") for row in rows)
    assert f" of {sum(row['bound'] is not None for row in rows)} targets met" in printed
    assert sum(row["bound"] is None for row in rows) < 10
    steps = [row for row in rows if row["what"].startswith("step of")]
    assert len(steps) == 2 and all(row["peer_to_ours"]["python"] > 0 for row in steps)
    peers = {row["what"]: {*row["peers"]} for row in rows}
    alone = {"python", "ngram"}  # they know nothing of other requests
    assert peers["chain k=3, request, private"] == {"newest", "arctic", "sglang"} | alone
    assert peers["chain k=3, request, shared"] == {"newest", "arctic", "sglang"}
    assert peers["draft k=3, newest"] == {"python", "arctic", "ngram", "sglang"}


def test_missed_target_exits_with_1_and_is_named(tmp_path):
    what, targets = "memory, request", tmp_path / "targets.toml"
    targets.write_text(TARGETS.read_text().replace(f'"{what}" = "<= 60"', f'"{what}" = "<= 0.001"'))
    found, printed, (row, *_) = run(tmp_path, "--only", what, "--targets", targets)
    assert row["what"] == what and row["bound"] == 0.001 and row["verdict"] == "MISSED"
    # The texts of a quick run are so short that most of ours is what the pool learns into, 600 kB once.
    assert row["peers"]["python"]["median"] > 300 and 1000 > row["ours"]["median"] > 20
    assert f"MISSED: {what}: " in printed and found == 1


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('["so"]\n"append" = "< 1"', "must be a text: '<=' or '>='"),
        ('"append" = "<= 1"', "needs a reason as the name of its table"),
        ('["so"]\n"append" = "<= 1 python"', "then perhaps ' x ' and the name of a peer"),
        ('["so"]\n"append" = "<= 1"\n["why"]\n"append" = "<= 1"', "two targets for 'append'"),
        ("[", "cannot be read as TOML"),
    ],
)
def test_target_has_a_bound_and_a_reason(tmp_path, entry, said):
    file = tmp_path / "targets.toml"
    file.write_text(entry)
    with pytest.raises(LabError, match=re.escape(said)):
        Targets(file)


@pytest.mark.parametrize(("peer", "verdict"), [(4.0, "met"), (3.9, "MISSED"), (None, "FAILED")])
def test_bound_may_be_a_share_of_a_peer_in_the_same_run(peer, verdict):
    peers = {"other": Figure.of([peer]) if peer else "not available: no compiler"}
    row = Row("part", "what", "us", "<=", 0.5, "other", "a reason", Figure.of([2.0]), peers)
    assert row.verdict == verdict and row.target == "<= 0.5 x other"
    told = missed([row])
    assert told == "" if verdict == "met" else told.startswith(f"{verdict}: what: ") and "a reason" in told
    assert ("no compiler" in told) == (peer is None)
    assert as_json(row)["peer_to_ours"] == ({"other": peer / 2} if peer else {})


def test_contestants_take_turns_and_get_medians_and_quartiles():
    order, values = [], {"a": [1.0, 9.0, 2.0], "b": [5.0, 4.0, 60.0]}

    def sample(name):
        order.append(name)
        return values[name].pop(0)

    found = alternate({name: partial(sample, name) for name in "ab"}, 3)
    assert found == {"a": (2.0, 1.5, 5.5), "b": (5.0, 4.5, 32.5)} and order == [*"abbaab"]


def filled(figures, errors):
    """{words of a row: row} from {task: {set: (tokens, proposed)}} of 100 steps each; other tasks: (200, 400)."""
    found, rows = AcceptanceBench(Targets(TARGETS), True, print), {}
    for bundle, fill, wanted in found.rows():
        for task in wanted:
            sets = figures.get(task, {"x": (200, 400), "y": (200, 400)})
            found.figures[task] = {n: {"steps": 100, "tokens": t, "proposed": p} for n, (t, p) in sets.items()}
        found.errors |= errors
        try:
            fill(bundle)
        except LabError as error:
            bundle[0].error = str(error)
        rows |= {row.what: row for row in bundle}
    return rows


def test_figures_by_hand():
    """Geometric means over the sets; what failed fails its rows alone; draft lengths at equal tokens per step."""
    task, rival, arctic = Task("blend", "request", 8), Task("sglang", "request", 8), Task("arctic", "request", 8)
    figures = {at: {"x": (100 + 20 * i, 100 * i)} for i, at in enumerate(SWEEP)} | {NEWEST: {"x": (150, 400)}}
    figures |= {task: {"x": (400, 1), "y": (200, 1)}, rival: {"x": (100, 1), "y": (200, 1)}}
    rows = filled(figures, {Task("blend", "group", 8): "it broke", arctic: "not available: no compiler"})
    row = rows["chain k=8, request, shared"]
    assert row.ours == pytest.approx((8**0.5, 2.5, 3.5)) and row.peers["sglang"].median == pytest.approx(2**0.5)
    assert row.peers["newest"].median == 2 and row.value == pytest.approx(2) and row.met
    assert row.peers["arctic"] == "not available: no compiler" and rows["chain k=8, request, private"].value == 1
    assert rows["chain k=8, group, shared"].error == "it broke" and not rows["chain k=8, group, shared"].met
    row = rows["drafted tokens for the acceptance of newest k=3"]
    assert row.value == pytest.approx(2.5 / 4) and row.ours.median == 2.5 and row.note == "at 1.500 tokens per step"


def die(*task):
    os._exit(9)


def test_a_worker_that_is_killed_fails_its_rows_alone(monkeypatch):
    found = AcceptanceBench(Targets(TARGETS), True, print)
    monkeypatch.setattr(acceptance, "run_task", die)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found.measure([NEWEST])
    with pytest.raises(LabError, match="a process that measured acceptance died"):
        found.figure(NEWEST)
