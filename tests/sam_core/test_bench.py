# SPDX-License-Identifier: Apache-2.0
"""`make bench-core`: every row runs, the verdict and the exit status agree, and its arithmetic by hand."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from pool_oracle import step

import sam_core
from sam_core import replay

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "sam_core" / "bench"
sys.path.append(str(BENCH))

import acceptance  # noqa: E402
import peers  # noqa: E402
from acceptance import NEWEST, SWEEP, Acceptance, Task, drafted_for  # noqa: E402
from rows import NotMeasured, Row, alternate, figure, table  # noqa: E402
from texts import SIBLINGS, Texts, checkpoint, periodic  # noqa: E402


def test_quick_run_measures_every_row(tmp_path):
    words = [sys.executable, str(BENCH), "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170)
    assert done.returncode in (0, 1), done.stderr
    record = json.loads((tmp_path / "out" / "bench-core.json").read_text())
    assert len(record["rows"]) > 40 and record["quick"] is True
    for row in record["rows"]:
        assert row["error"] == "" and row["ours"] > 0, row["what"]
        assert row["what"] in done.stdout
    verdicts = {row["verdict"] for row in record["rows"]}
    assert verdicts <= {"met", "MISSED"} and done.returncode == ("MISSED" in verdicts)
    assert any("python" in row["peers"] for row in record["rows"])


def test_row_without_a_target_met_exits_with_1(tmp_path):
    words = [sys.executable, str(BENCH), "--quick", "--out", str(tmp_path), "--only"]
    done = subprocess.run([*words, "memory, request, bytes"], capture_output=True, text=True, timeout=100)
    (row,) = json.loads((tmp_path / "bench-core.json").read_text())["rows"]
    assert done.returncode == (row["verdict"] != "met"), done.stderr
    assert row["peers"]["python"] > row["ours"] > 20
    assert f"{figure(row['ours'])}" in done.stdout and row["verdict"] in done.stdout


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("better", "ours", "verdict"),
    [("<=", 1.0, "met"), ("<=", 1.01, "MISSED"), (">=", 1.0, "met"), (">=", 0.99, "MISSED"), ("<=", None, "FAILED")],
)
def test_verdict_of_a_row(better, ours, verdict):
    row = Row("part", "what", "us", better, 1.0, ours)
    assert row.verdict == verdict and row.met == (verdict == "met")
    assert verdict in table([row])


def test_contestants_take_turns_and_get_medians():
    order, values = [], {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 4.0, 60.0])}

    def sample(name):
        order.append(name)
        return next(values[name])

    found = alternate({"a": lambda: sample("a"), "b": lambda: sample("b")}, 3)
    assert found == {"a": 2.0, "b": 5.0} and order == ["a", "b", "b", "a", "a", "b"]


# ---- acceptance -----------------------------------------------------------------------------------------------------


def test_drafted_tokens_are_interpolated():
    curve = [(2.0, 5.0), (1.0, 1.0), (1.5, 2.0)]
    assert drafted_for(curve, 1.25) == 1.5 and drafted_for(curve, 1.75) == 3.5 and drafted_for(curve, 2.0) == 5.0
    with pytest.raises(NotMeasured, match="no min_prob gives 2.100 tokens a step: they go from 1.000 to 2.000"):
        drafted_for(curve, 2.1)


def filled(figures, errors=None):
    """{words of a row: row} from {task: {set: (tokens, proposed)}} of 100 steps each; other tasks: (200, 400)."""
    found = Acceptance(Texts(fixture=True), True, print)
    rows = {}
    for bundle, fill, wanted in found.rows():
        for task in wanted:
            sets = figures.get(task, {"x": (200, 400), "y": (200, 400)})
            found.figures[task] = {n: {"steps": 100, "tokens": t, "proposed": p} for n, (t, p) in sets.items()}
        found.errors |= errors or {}
        try:
            fill(bundle)
        except NotMeasured as error:
            bundle[0].error = str(error)
        rows |= {row.what: row for row in bundle}
    return rows


def test_ratios_are_geometric_means_over_the_sets():
    task, rival = Task("blend", "request", 8), Task("arctic", "request", 8)
    rows = filled({task: {"x": (400, 1), "y": (200, 1)}, rival: {"x": (100, 1), "y": (200, 1)}})
    row = rows["chain k=8, request, to count"]
    assert row.ours == pytest.approx(2**0.5) and row.peers["arctic"] == pytest.approx(0.5**0.5)
    assert "2.828, 2.000" in row.note and row.met
    assert rows["chain k=8, group, to count"].ours == pytest.approx(1)


TREE, CHAIN = Task("blend", "group", 16, True), Task("count", "group", 8)


def test_trees_are_held_against_chains_and_history_against_none():
    equal = {task: {"x": (tokens, 1), "y": (tokens, 1)} for task, tokens in ((TREE, 240), (CHAIN, 160))}
    assert filled(equal)["tree n=16, group, to count k=8"].ours == pytest.approx(1.5)
    rows = filled({Task("blend", "nohistory", 8): {"x": (160, 1), "y": (160, 1)}})
    assert rows["history k=8, to none"].ours == pytest.approx(1.25)


def test_corpus_has_its_worst_set_told():
    rows = filled({Task("blend", "request", 8, folds="with"): {"x": (400, 1), "y": (190, 1)}})
    assert rows["corpus k=8, request, to none"].ours == pytest.approx(1.9**0.5)
    worst = rows["corpus k=8, request, worst set"]
    assert (worst.ours, worst.note, worst.verdict) == (0.95, "y", "MISSED")


def test_draft_length_is_compared_at_equal_tokens_a_step():
    figures = {task: {"x": (100 + 20 * at, 100 * at)} for at, task in enumerate(SWEEP)}
    rows = filled(figures | {NEWEST: {"x": (150, 400)}})
    row = rows["drafted tokens, newest k=3 = 1"]
    assert (
        row.ours == pytest.approx(2.5 / 4) and row.note == "at 1.500 tokens a step: 2.50 instead of 4.00 drafted a step"
    )


def test_failed_configuration_fails_its_rows_alone():
    rows = filled(
        {}, {Task("blend", "group", 8): "it broke", Task("arctic", "request", 8): "not available: no compiler"}
    )
    assert rows["chain k=8, group, to count"].error == "it broke" and not rows["chain k=8, group, to count"].met
    assert rows["chain k=8, request, to count"].ours == pytest.approx(1)
    assert rows["chain k=8, request, to count"].peers["arctic"] == "not available: no compiler"


def test_a_task_that_raises_says_why(monkeypatch):
    found = acceptance.run_task(True, "math-cot-groups8", Task("no rule", "request", 3), 100)
    assert found.startswith("ValueError: ") and "no rule" in found
    monkeypatch.setitem(acceptance.PEERS, "arctic", lambda: (_ for _ in ()).throw(peers.NotAvailable("no compiler")))
    assert (
        acceptance.run_task(True, "math-cot-groups8", Task("arctic", "request", 3), 100) == "not available: no compiler"
    )


def test_task_is_the_replay_of_its_set():
    found = acceptance.run_task(True, "math-cot-groups8", Task("newest", "group", 4), 3000)
    scopes = replay.make_scopes(Texts(fixture=True).answers("math-cot-groups8"), "group", max_tokens=3000)
    again = replay.replay(replay.SamDrafter(rule="newest"), scopes, "group", 4)
    assert all(found[name] == again[name] for name in ("steps", "tokens", "proposed", "requests"))
    assert found["tokens_per_step"] > 1.5


# ---- texts ----------------------------------------------------------------------------------------------------------


def test_fixture_has_long_text_siblings_and_history():
    texts = Texts(fixture=True)
    assert texts.is_fixture and texts.names == ["math-cot-groups8", "reason-long-groups", "rl-rollouts-qwen3b"]
    rows, remark = texts.ordinary(2 * SIBLINGS, 20_000)
    assert rows.shape == (2 * SIBLINGS, 20_000) and "repeated" in remark
    assert len({row.tobytes() for row in rows}) == len(rows) and (texts.ordinary(2 * SIBLINGS, 20_000)[0] == rows).all()
    assert len(replay.make_scopes(texts.answers("rl-rollouts-qwen3b"), "history")) > 10
    collection, remark = texts.collection(150_000)
    assert 150_000 <= sum(map(len, collection)) < 160_000 and "repeated" in remark


def test_periodic_text_repeats_and_rows_differ():
    rows = periodic(3, 20, 8)
    assert (rows[:, 8:] == rows[:, :-8]).all() and len(set(rows[:, :8].flat)) == 24


@pytest.mark.parametrize(
    ("model", "epoch"), [("Qwen2.5-3B-Instruct", 0), ("games_100", 100), ("qwen3b_cognition", 500)]
)
def test_checkpoint_of_a_model(model, epoch):
    assert checkpoint(model) == epoch


# ---- peers ----------------------------------------------------------------------------------------------------------


def test_automaton_in_python_drafts_as_the_pool_does():
    pool, sam, rng = sam_core.Pool(rule="oldest", sources=("request",)), peers.PythonSam(), random.Random(1)
    slot, drafted = pool.open([], None), 0
    for _ in range(600):
        token = rng.randrange(3)
        sam.append(token)
        assert [sam.draft(5)] == step(pool, [(slot, [token])], 5)
        drafted += len(sam.draft(5))
    assert drafted > 2500


PEERS = """
import sys
sys.path.append(sys.argv[1])
import numpy as np, peers
text = [1, 2, 3, 4, 5, 6, 7, 8] * 4
for drafter in (peers.NgramDrafter(), peers.ArcticDrafter()):
    drafter.start(0, text[:20], None)
    drafter.append(0, text[20:28])
    assert drafter.propose(0, 4) == [5, 6, 7, 8], drafter
    drafter.finish(0)
table = np.array([text, text[::-1]], np.int32)
for batch in (peers.PythonBatch(table, 24), peers.NgramBatch(table, 24, 3), peers.ArcticBatch(table, 24)):
    batch.append()
    assert batch.draft(3) == [[2, 3, 4], [7, 6, 5]], (batch, batch.draft(3))
trees = peers.ArcticDrafter()
trees.start(0, [1, 2, 3, 1, 2, 4, 1, 2], "g")
tokens, parents = trees.propose_tree(0, 4)
assert {3, 4} <= set(tokens) and parents[0] == -1, (tokens, parents)
trees.append(0, [5, 6])
trees.start(1, [9], "g")
trees.append(1, [5])
assert trees.propose(1, 3) == [6], trees.propose(1, 3)  # the group's other answer
"""


def test_other_peers_draft():
    python = ROOT / ".venvs" / "bench" / "bin" / "python"
    if not python.exists() or not peers.CACHE.is_dir():
        pytest.skip("needs .venvs/bench and the peers, which `make bench-core` gets")
    done = subprocess.run([python, "-c", PEERS, BENCH], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
