# SPDX-License-Identifier: Apache-2.0
"""`evidence`: its data and their split, its rollouts against the replay, its statistics by hand, and the command on a
few batches."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import sam_core
from sam_lab.__main__ import main
from sam_lab.cli import LabError
from sam_lab.drafters import SamDrafter
from sam_lab.evidence import arms, command, data, tuning
from sam_lab.evidence.arms import make, parse
from sam_lab.evidence.jobs import Job, Settings
from sam_lab.evidence.rollout import FIELDS, column, roll_out
from sam_lab.evidence.statistics import foreseen, pooled, summary
from sam_lab.evidence.worlds import NAMES, World, worlds
from sam_lab.plan.cost import Cost
from sam_lab.recordings import PARTS, Answer
from sam_lab.replay import replay

FLAT = World("flat", "a second a step", Cost(np.array([1.0, 1e6]), np.ones(2), 0.0, 0.0))
SMALL = Settings(tokens=60, max_running=64, num_batches=2, verify=0.75)


def answers_of(*texts, prompt=(7, 8)):
    return [Answer([*prompt], [*text], f"p{i}", f"g{i}", None) for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", data.SETS)
def test_twenty_batches_or_more_share_no_prompt_with_each_other_or_with_dev(name):
    parts = {part: data.batches(data.SETS[name], part, 100) for part in PARTS}
    assert len(parts["test"]) >= 20
    prompts = [prompt for batches in parts.values() for batch in batches for prompt in batch.prompts]
    assert len(prompts) == len(set(prompts))
    of = data.SETS[name]
    for batch in parts["test"]:
        assert len(batch.answers) == of.prompts * of.groups * of.answers
        assert bool(batch.earlier) == of.earlier
        assert {answer.prompt_id for answer in [*batch.answers, *batch.earlier]} == set(batch.prompts)


def test_plain_decoding_gives_a_token_a_step():
    steps = roll_out(answers_of([1] * 5, [2] * 3), None, 64)
    assert column(steps, "emitted").tolist() == [2, 2, 2, 1, 1]
    assert column(steps, "running").tolist() == [2, 2, 2, 1, 1]
    assert column(steps, "prompt").tolist() == [4, 0, 0, 0, 0]
    assert column(steps, "rows").tolist() == [4, 2, 2, 1, 1]
    assert column(steps, "context").tolist() == [0, 6, 8, 5, 6]


def test_auto_decides_beside_a_prompt_in_chunks():
    answers = [*answers_of([1] * 9), *answers_of([1] * 3, prompt=range(20_000))]
    steps = roll_out(answers, make("auto:3", itertools.count().__next__), 64)
    assert column(steps, "prompt").tolist()[:4] == [8192, 8191, 20_000 - 8192 + 2 - 8191, 0]


class Fixed:
    """Drafts these tokens in every step."""

    def __init__(self, draft):
        self.draft_of_all = draft

    def begin(self, table, prompts, groups):
        pass

    def draft(self, active, lengths, may_draft, num_tokens):
        return [self.draft_of_all[:] for _ in active]

    def finish(self, ended):
        pass


def test_a_draft_counts_as_far_as_it_equals_the_answer():
    steps = roll_out(answers_of([5, 5, 5, 9, 5, 5]), Fixed([5, 5, 9, 1]), 64)
    assert column(steps, "emitted").tolist() == [1, 4, 1]  # 5 | 5 5 9 5 | 5
    assert column(steps, "drafted").tolist() == [0, 4, 4]
    assert column(steps, "rows").tolist() == [2, 5, 5]
    assert column(steps, "draft_context").tolist() == [0, 12, 28]


def test_a_rollout_takes_the_steps_of_the_replay():
    answers = data.batches(data.SETS["math"], "dev", 200, 1)[0].answers
    for answer in answers:  # one at a time: nothing depends on the order of requests
        alone = dataclasses.replace(answer)
        steps = roll_out([alone], make("batch:8", lambda: 0.0), 64)
        figures = replay(SamDrafter(rule="blend", min_prob=0.1), [[(alone, True)]], "request", 8)
        # the replay drafts from the prompt for its first step; a rollout's first step reads the prompt
        assert abs(len(steps) - figures["steps"]) <= 1
        assert column(steps, "emitted").sum() == len(alone.response_ids)


@pytest.mark.parametrize("arm", ["auto", "batch:3:0", "nothing:3"])
def test_unknown_arms_are_refused(arm):
    with pytest.raises(LabError, match="unknown arm"):
        parse(arm)


def test_worlds_price_a_step():
    by_name = {world.name: world for world in worlds()}
    assert tuple(by_name) == NAMES
    fields = dict.fromkeys(FIELDS, 0) | {"running": 8, "rows": 8, "emitted": 8, "context": 8000}
    plain, drafts = [fields[name] for name in FIELDS], fields | {"rows": 32, "drafted": 24, "draft_context": 24_000}
    steps = np.array([plain, [drafts[name] for name in FIELDS]], np.int64)
    ratios = {name: float(np.divide(*world.seconds(steps)[::-1])) for name, world in by_name.items()}
    assert ratios["910c-eager"] == 1  # the host's launches hide it
    assert ratios["article"] == pytest.approx(1.75)
    assert 1 < ratios["910c-graph"] < 1.2 < ratios["h100"] < 1.3 and ratios["cpu"] > 2


def of_seconds(*batches):
    """Steps of one request with one token, as many as the batch takes seconds."""
    one = [1 if name in ("running", "rows", "emitted") else 0 for name in FIELDS]
    return [np.array([one] * n, np.int64) for n in batches]


def test_gains_by_hand():
    plain, arm = of_seconds(10, 20, 30), of_seconds(5, 20, 20)
    row = summary(plain, arm, FLAT)
    assert row["pooled"][0] == pytest.approx(60 / 45, abs=1e-3)
    assert row["median"][0] == 1.5 and row["worst"] == 1
    assert row["pooled"][1] == 1 and row["pooled"][2] == 2  # resamples of one batch alone
    assert pooled(np.array([6.0]), np.array([4.0])) == [1.5], "one batch has no interval"
    assert pooled(np.array([2.0, 2.0]), np.array([1.0, 1.0])) == [2, 2, 2]


def test_foresight_verifies_what_is_accepted():
    steps = roll_out(answers_of([5, 5, 5, 9, 5, 5]), Fixed([5, 5, 9, 1]), 64)
    (known,) = foreseen([steps])
    assert column(known, "drafted").tolist() == [0, 3, 0]
    assert column(known, "rows").tolist() == [2, 4, 1]
    assert column(known, "draft_context").tolist() == [0, 9, 0]
    for name in ("running", "emitted", "context", "prompt"):
        assert np.array_equal(column(known, name), column(steps, name))


def test_the_best_arm_is_that_of_the_dev_prompts():
    done = {Job("math", "dev", "plain"): of_seconds(50), Job("math", "test", "batch:1"): of_seconds(1)}
    for method, lengths in tuning.LENGTHS.items():
        for k in lengths:
            done[Job("math", "dev", f"{method}:{k}")] = of_seconds(40 + k)
    done[Job("math", "dev", "suffix:8:4")] = of_seconds(9)
    best = tuning.best("math", done, FLAT)
    assert best["all"] == best["suffix"] == "suffix:8:4" and best["batch"] == "batch:1"
    names = [job.arm for job in tuning.shortlist("math", done, FLAT)]
    assert len(names) == tuning.SHORTLIST * len(tuning.METHODS) and all(parse(name)[2] <= 48 for name in names)


COMMAND = ["evidence", "--sets", "code", "--worlds", "article", "--batches", "2", "--tokens", "40", "--processes", "1"]


def test_the_command_compares_the_arms(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    words = [*COMMAND, "--without", "ngram", "suffix", "--out", str(out)]
    assert main(words) == 0
    result = json.loads((out / "evidence.json").read_text())
    (goal,) = result["goals"]
    assert goal["goal"] in ("reached", "missed") and goal["best"].startswith(("batch:", "oldest:", "wide:"))
    assert goal["foresight"] >= 1
    rows = {row["arm"]: row for row in result["rows"]}
    assert {"oldest:3:8", "auto:3", "auto:8", "auto:15", "saved", goal["best"]} <= set(rows)
    for arm in ("auto:3", "auto:8", "auto:15", "saved"):
        value, low, high = rows[arm]["pooled"]
        assert rows[arm]["worst"] <= low < value < high and rows[arm]["accepted"] > 0
    assert (out / "jobs" / "code-test-auto_15-article-saved.npz").exists()
    assert "auto against the best fixed arm" in capsys.readouterr().out
    (out / "evidence.json").unlink()
    assert main([*words, "--resume"]) == 0
    assert json.loads((out / "evidence.json").read_text()) == result
    assert main([*words, "--resume", "--tokens", "30"]) == 2
    assert "is of other settings" in capsys.readouterr().err
    other_cost = {"h100": data.FOLDER / "code.jsonl.gz"}
    for of, name, value in ((sam_core, "__version__", "0"), (command, "MEASURED", other_cost)):
        with monkeypatch.context() as other:
            other.setattr(of, name, value)
            assert main([*words, "--resume"]) == 2
        assert "is of other settings, data or sam_core" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--tokens", "2"), ("--verify", "nan")])
def test_what_no_run_can_use_is_refused_before_it(words, tmp_path, capsys):
    assert main(["evidence", *words, "--out", str(tmp_path / "out")]) == 2
    assert f"error: {words[0]} must be " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_method_that_cannot_run_is_told_before_the_first_job(tmp_path, capsys, monkeypatch):
    def not_here(*args):
        raise LabError("not available: no compiler")

    monkeypatch.setattr(arms, "Suffix", not_here)
    assert main([*COMMAND, "--without", "ngram", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "suffix is not available: no compiler: " in error
    assert "ci/setup-env bench" in error and "--without suffix" in error
    assert not (tmp_path / "out").exists()
