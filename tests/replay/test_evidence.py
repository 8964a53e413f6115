# SPDX-License-Identifier: Apache-2.0
"""`evidence`: its data, its rollouts compared with the replay, statistics computed by hand, and the command itself."""

import dataclasses
import itertools
import json
import types

import numpy as np
import pytest

from sam_lab.__main__ import main
from sam_lab.cli import LabError
from sam_lab.cost import Cost
from sam_lab.drafters import SamDrafter
from sam_lab.evidence import arms, data, tuning
from sam_lab.evidence.arms import make, parse
from sam_lab.evidence.devices import NAMES, Device, devices
from sam_lab.evidence.jobs import PLAIN, Job, Settings, run
from sam_lab.evidence.model import KINDS, Kind, ModelDrafter
from sam_lab.evidence.rollout import FIELDS, Timeline, column, roll_out
from sam_lab.evidence.statistics import by_task, pooled, seconds, summary
from sam_lab.recordings import PARTS, Answer
from sam_lab.replay import accept_chain, replay

FLAT = Device("flat", "a second a step", Cost(np.array([1.0, 1e6]), np.ones(2), 0.0, 0.0))
SMALL = Settings(tokens=60, num_batches=2, verify=0.75)


def answers_of(*texts, prompt=(7, 8)):
    return [Answer([*prompt], [*text], f"p{i}", f"g{i}", None) for i, text in enumerate(texts)]


def columns(steps, *names):
    return {name: column(steps, name).tolist() for name in names}


@pytest.mark.parametrize("name", data.SETS)
def test_batches_share_no_prompt_with_each_other_or_with_dev(name):
    of, running = data.SETS[name], 16
    parts = {part: data.batches(of, part, 100, running) for part in PARTS}
    prompts = [{a.prompt_id for a in [*b.answers, *b.earlier]} for batches in parts.values() for b in batches]
    assert len(set.union(*prompts)) == sum(map(len, prompts))
    sizes = [len(batch.answers) for batch in parts["test"]]
    per_prompt = of.groups * of.answers
    assert data.WAVES * running < min(sizes) + per_prompt and max(sizes) - min(sizes) <= per_prompt
    assert all(bool(batch.earlier) == of.earlier for batch in parts["test"])
    (whole,) = data.batches(of, "test", 100, 10_000)
    assert len(whole.answers) == sum(sizes)


def test_plain_decoding_gives_a_token_a_step():
    rollout = roll_out(answers_of([1] * 5, [2] * 3, [3] * 2), None, 2)  # the third answer waits for the second
    steps, spans = rollout
    assert spans.tolist() == [[0, 4], [0, 2], [3, 4]]
    expected = {"emitted": 5 * [2], "running": 5 * [2], "prompt": [4, 0, 0, 2, 0], "rows": [4, 2, 2, 3, 2]}
    assert columns(steps, *expected, "context") == expected | {"context": [0, 6, 8, 5, 9]}
    of_answers = seconds([rollout], FLAT)
    assert of_answers.tolist() == [2.5, 1.5, 1], "the time of a step is shared by its requests"
    assert by_task(of_answers, ["b", "a", "b"]).tolist() == [1.5, 3.5]


def test_auto_decides_while_a_prompt_is_read_in_chunks():
    answers = [*answers_of([1] * 9), *answers_of([1] * 3, prompt=range(20_000))]
    steps, _ = roll_out(answers, make("auto:3", itertools.count().__next__), 64)
    assert column(steps, "prompt").tolist()[:4] == [8192, 8191, 20_000 - 8192 + 2 - 8191, 0]


def test_a_draft_counts_as_far_as_it_equals_the_answer():
    drafter = types.SimpleNamespace(begin=lambda *args: None, finish=lambda ended: None, passes=0)
    drafter.draft = lambda active, *args: [[5, 5, 9, 1] for _ in active]
    steps, _ = roll_out(answers_of([5, 5, 5, 9, 5, 5]), drafter, 64)
    expected = {"emitted": [1, 4, 1], "drafted": [0, 4, 4], "rows": [2, 5, 5], "draft_context": [0, 12, 28]}
    assert columns(steps, *expected) == expected  # 5 | 5 5 9 5 | 5


def test_a_rollout_takes_the_steps_of_the_replay():
    answers = data.batches(data.SETS["math"], "dev", 200, 16)[0].answers
    for answer in answers[:8]:  # one at a time: nothing depends on the order of requests
        alone = dataclasses.replace(answer)
        steps, _ = roll_out([alone], make("batch:8", lambda: 0.0), 64)
        figures = replay(SamDrafter(rule="blend", min_prob=0.1), [[(alone, True)]], "request", 8)
        # the replay drafts from the prompt for its first step; a rollout's first step reads the prompt
        assert abs(len(steps) - figures["steps"]) <= 1
        assert column(steps, "emitted").sum() == len(alone.response_ids)


def test_what_is_no_arm_is_refused():
    parameters = ("auto[min_prob=1]:3", "batch[x]:3", "batch[min_prob=1.2.3]:3")
    for arm in ("auto", "auto:3/3/3/3", "batch:0", "batch:3/0", "batch:3:8", "batch:3@async", "batch 3", *parameters):
        with pytest.raises(LabError, match="unknown arm .*: choose from ngram:K, ngram:K/K/K/K, .*, auto:K, model:K, "):
            parse(arm)
    with pytest.raises(LabError, match="it never drafts"):
        parse("batch:0/0/0/0")
    with pytest.raises(LabError, match="has no parameter depth: choose from min_prob"):
        parse("batch[depth=3]:4")


def test_a_schedule_limits_drafts_by_running_requests():
    arm = parse("batch[min_prob=0.02]:15/8/3/0")
    assert [arm.k(n) for n in (1, 8, 9, 32, 33, 128, 129)] == [15, 15, 8, 8, 3, 3, 0]
    assert arm.parameters == {"min_prob": 0.02} and parse("suffix:8").lengths == [8] * 4
    rows = [[1, 2, 3, 4, 5, 6] * 8] * 10
    for steps, _ in (roll_out(answers_of(*rows[:n]), make("batch:3/0/0/0", lambda: 0.0), 64) for n in (8, 9)):
        running, drafted = column(steps, "running"), column(steps, "drafted")
        assert not drafted[running > 8].any() and (len(running) < 40) == (running.max() <= 8)
        assert drafted.any() == (running.max() <= 8) and drafted.max() <= 24


def test_devices_price_a_step():
    by_name = {device.name: device for device in devices()}
    assert tuple(by_name) == NAMES
    plain = dict.fromkeys(FIELDS, 0) | {"running": 8, "rows": 8, "emitted": 8, "context": 8000}
    drafts = plain | {"rows": 32, "drafted": 24, "draft_context": 24_000}
    steps = np.array([[of[name] for name in FIELDS] for of in (plain, drafts)], np.int64)
    ratios = {name: float(np.divide(*device.seconds(steps)[::-1])) for name, device in by_name.items()}
    assert ratios["910c-eager"] == 1  # the host's launches hide it
    assert ratios["article"] == pytest.approx(1.75)
    assert 1 < ratios["910c-graph"] < 1.2 < ratios["h100"] < 1.3 and 1 < ratios["h200"] < 1.2 and ratios["cpu"] > 2


def test_captured_graphs_take_k_drafts_of_every_request_or_none():
    rollout, *_ = run(Job("math", "dev", 16, "auto:8", "910c-graph"), Settings(100, 1, 0.75))
    steps = rollout.steps[column(rollout.steps, "prompt") == 0]
    assert set((column(steps, "drafted") / column(steps, "running")).tolist()) == {0, 8}


@pytest.mark.parametrize("correlation", [0, 0.7])
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_simulated_drafter_has_the_published_acceptance(kind, correlation):
    rng = np.random.default_rng(0)
    (answer,) = answers_of(rng.integers(0, 50, 20_000).tolist())
    text = [*answer.prompt_ids, *answer.response_ids]
    model = ModelDrafter(kind, correlation)
    model.begin([answer], rng.geometric(0.6, (1, len(text))) - 2)  # -1: nothing was drafted for
    places = np.arange(2, len(text) - model.longest)
    drafts = model.draft([0] * len(places), places).tolist()
    accepted = np.array([accept_chain(draft, text, at) for draft, at in zip(drafts, places, strict=True)])
    shares = [(accepted > n).mean() for n in range(model.longest)]
    assert shares == pytest.approx(kind.accepted, abs=0.02)


@pytest.mark.parametrize("correlation", [0, 0.4, 1])
def test_a_simulated_drafter_is_right_where_the_texts_are(correlation):
    model = ModelDrafter(Kind("fine", tuple(np.arange(0.99, 0, -0.01)), 0.1), correlation)
    found = np.random.default_rng(0).permutation(20_000)[None]
    model.begin(answers_of([1] * (20_000 - 2)), found)
    own = model.right[:, : found.shape[1]]
    assert np.corrcoef(found[0], own[0])[0, 1] == pytest.approx(correlation, abs=0.02)


@pytest.mark.parametrize("arm", ["model:3", "model+length:8", "model+auto:8"])
def test_the_drafts_of_a_model_are_accepted_as_drawn(arm):
    """The text repeats no token, so drafts from texts are wrong and only the model's drafts are accepted."""
    (answer,) = answers_of(range(10, 810))
    model = ModelDrafter(KINDS["mtp"])
    model.begin([answer])
    steps, _ = roll_out([answer], make(arm, itertools.count().__next__, model), 1)
    ends = 2 + np.cumsum(column(steps, "emitted"))
    most = np.minimum(column(steps, "drafted"), column(steps, "passes"))[1:]
    expected = 1 + np.minimum(model.right[0, ends[:-1]], most)
    assert np.diff(ends)[:-1].tolist() == expected[:-1].tolist() and most.mean() > 0.5


@pytest.mark.parametrize(("later", "passes"), [(0.01, 1), (1, 3)])
def test_later_passes_run_while_they_pay(later, passes, monkeypatch):
    monkeypatch.setitem(KINDS, "own", Kind("own", (0.9, 0.9 * later, 0.9 * later), 0.1))
    (rollout,) = run(Job("math", "dev", 16, "model+auto:8", "h200"), Settings(200, 1, 0.75, "own"))
    steps = rollout.steps
    ran, drafted = column(steps, "passes"), column(steps, "drafted")
    assert not drafted[ran == 0].any() and (ran[drafted > 0] == passes).mean() > 0.7


def test_no_pass_runs_while_drafting_pauses():
    (rollout,) = run(Job("math", "dev", 16, "model+auto:8", "article"), Settings(100, 1, 20.0, "eagle3"))
    ran, drafted = column(rollout.steps, "passes"), column(rollout.steps, "drafted")
    assert (ran == 0).mean() > 0.6 and not drafted[ran == 0].any()


def test_passes_take_time():
    device = dataclasses.replace(FLAT, share=0.1)
    steps = [[dict(running=8, rows=8, passes=n).get(name, 0) for name in FIELDS] for n in (0, 1, 3)]
    assert device.seconds(np.array(steps, np.int64)) == pytest.approx([1, 1.1, 1.3])


def test_gains_by_hand():
    """A batch is one request with one token in each step of one second."""
    one = [int(name in ("emitted", "running", "rows")) for name in FIELDS]
    of_arms = (10, 20, 30), (5, 20, 20)
    made = [[Timeline(np.array([one] * n, np.int64), np.array([[0, n - 1]])) for n in batches] for batches in of_arms]
    row = summary(*made, FLAT, ["a", "b", "a"])
    assert row["pooled"] == [pytest.approx(60 / 45, abs=1e-3), 1, 1.6]  # resamples of one task alone: 20/20, 40/25
    assert row["worst"] == 1 and row["batches"] == 3
    assert pooled(np.array([6.0]), np.array([4.0])) == [1.5], "one task has no interval"
    assert pooled(np.array([2.0, 2.0]), np.array([1.0, 1.0])) == [2, 2, 2]


def test_the_best_schedule_is_that_of_the_dev_prompts():
    """The best method doubles the tokens of steps with up to 8 requests and only lengthens steps with more."""

    def rollouts(*of_few_and_many):
        steps = []
        for running, (emitted, time) in zip((4, 20), of_few_and_many, strict=True):
            names = {"running": running, "rows": running * time, "emitted": emitted * running}
            steps += [[names.get(name, 0) for name in FIELDS]] * 10
        return [Timeline(np.array(steps, np.int64), np.zeros((1, 2), np.int64))]

    cost = Cost(np.array([1.0, 1e6]), np.array([1.0, 1e6]), 0.0, 0.0)
    device, best = Device("rows", "a second a row", cost), "suffix[depth=64,factor=1,min_prob=0.1]:8"
    done = {job: rollouts((1, 3), (1, 3)) for job in tuning.jobs("math", list(tuning.GRID), ["rows"])}
    done |= {job: rollouts((1, 1), (1, 1)) for job in done if job.arm == PLAIN}
    done |= {job: rollouts((2, 1), (1, 2)) for job in done if job.arm == best}
    assert tuning.best("math", "suffix", done, device, 16, SMALL) == best + "/0/0/0"
    assert tuning.best("math", "batch", done, device, 16, SMALL) is None
    best = "suffix-device[depth=64]:15"
    done |= {job: rollouts((2, 1), (2, 1)) for job in done if job.arm == best}
    assert tuning.best("math", "suffix-device", done, device, 16, SMALL) == best


COMMAND = ["evidence", "--sets", "code", "--devices", "h100", "--batches", "1", "--tokens", "90", "--processes", "1"]
COMMAND += ["--running", "16"]


def test_the_command_compares_the_arms(tmp_path, capsys):
    assert main([*COMMAND, "--without", "ngram", "suffix", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "evidence.json").read_text())
    rows = {row["arm"]: row for row in result["rows"]}
    best = {method: row["arm"] for row in result["rows"] for method in row["best_of"]}
    assert {*best} == {"batch", "suffix-device"}
    assert {"oldest:3/0/0/0", "auto:3", "auto:15", *best.values()} == set(rows)
    for arm in ("auto:3", "auto:15"):
        value, low, high = rows[arm]["pooled"]
        assert low < value < high and rows[arm]["accepted"] > 0 and rows[arm]["worst"] == pytest.approx(value)
    assert rows["auto:15"]["auto_over"] == [1, 1, 1]
    assert "16 at once; H100, fitted" in capsys.readouterr().out


def test_the_command_compares_the_arms_of_a_drafter(tmp_path):
    words = [*COMMAND, "--drafter", "mtp", "--correlation", "0.5", "--without", "ngram", "suffix"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out" / "evidence.json").read_text())
    rows = {row["arm"]: row for row in result["rows"]}
    assert {row["best_of"][0] for row in result["rows"] if row["best_of"]} == {"model", "model+length"}
    assert {"model+auto:15", "auto:15"} < set(rows) and rows["model+auto:15"]["auto_over"] == [1, 1, 1]
    assert rows["model+auto:15"]["pooled"][0] > rows["auto:15"]["pooled"][0] > 1


def test_what_no_run_can_use_is_refused_before_it(tmp_path, capsys, monkeypatch):
    def not_here(*args):
        raise LabError("not available: no compiler")

    monkeypatch.setattr(arms, "Suffix", not_here)
    for words, *sentences in (
        (("--tokens", "2"), "error: --tokens must be "),
        (("--verify", "nan"), "error: --verify must be "),
        (("--correlation", "0.5"), "error: --correlation needs a --drafter"),
        (("--without", "ngram"), "suffix is not available: no compiler: ", "ci/setup-env bench", "--without suffix"),
    ):
        assert main([*COMMAND, *words, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert all(sentence in error for sentence in sentences) and not (tmp_path / "out").exists()
