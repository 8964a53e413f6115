# SPDX-License-Identifier: Apache-2.0
"""All trainers of verl, with and without SAM: drafts are verified, and the answers are those of a synchronous run.

The learning rate is 0, so updates do not change the weights: a token depends only on its request's seed and its
position, in whatever order a trainer sends, aborts and resumes requests. The engines start with random weights, so a
missing first update would change the answers.
"""

import json
import re
from types import SimpleNamespace

import pytest

from llm_rl.reports.__main__ import main as report
from llm_rl.reports.answers import read_answers
from llm_rl.steps import read_steps

SPEC = "rollout/spec/"
ALL_PROMPTS = "algorithm.filter_groups=false"
TWO = [f"{key}=2" for key in ("data.train_batch_size", "data.gen_batch_size", "train.ppo_mini_batch_size")]
RUNS = {
    # Prompts are generated one by one, two answers at a time. Training on the first two prompts takes a fraction of
    # the time of generating the other six, so the new weights interrupt one of the six.
    "fully_async": (
        "tiny_tools",
        [ALL_PROMPTS, *TWO, "steps=4", "rollout.max_num_seqs=2"]
        + [f"verl.async_training.{key}" for key in ("staleness_threshold=3", "concurrent_samples_per_replica=1")],
    ),
    "one_step_off": ("tiny", [ALL_PROMPTS, "verl.algorithm.rollout_correction.bypass_mode=false"]),
    "colocate_async": ("tiny_tools", []),
    "separate_async": ("tiny", ["train.ppo_mini_batch_size=4"]),  # two updates a step
    "sync": ("tiny_tools", ["algorithm.use_kl_loss=true", "algorithm.use_kl_in_reward=true"]),
}
"""Recipe and overrides of each trainer mode; test_dapo_run.py runs sync without tools."""
ANSWERS_PLACED_BY_TIME = ("colocate_async", "separate_async")
"""Modes in which timing decides how many prompts a step replaces, and so from which number the next step counts its
prompts."""


@pytest.fixture(scope="module", params=RUNS)
def train_mode(request, train, tmp_path_factory):
    """train_mode(sam): run the mode to its end, which takes most of a minute, and return the run."""
    mode = request.param
    script, overrides = RUNS[mode]

    def run(sam):
        folder = tmp_path_factory.mktemp(f"{mode}-{sam}")
        common = [f"trainer.mode={mode}", f"sam={sam}", "sam_options.threshold=64", "train.lr=0", "steps=2"]
        train(folder, *common, *overrides, script=script, validate=True)
        rows = [json.loads(line) for path in folder.glob("engine-*.jsonl") for line in path.read_text().splitlines()]
        steps = [step["data"] for step in read_steps(folder / "steps.jsonl")]
        return SimpleNamespace(mode=mode, folder=folder, answers=read_answers(folder), steps=steps, rows=rows)

    return run


@pytest.fixture(scope="module")
def run(train_mode):
    return train_mode("batch")


@pytest.fixture(scope="module")
def without(train_mode):
    return train_mode("off")


def total(run, name):
    return sum(step.get(name, 0) for step in run.steps)


@pytest.mark.slow
def test_drafts_are_verified_and_logged(run):
    assert total(run, SPEC + "accepted_group") > 0
    drafting = [step for step in run.steps if step[SPEC + "drafted"]]
    assert drafting
    for step in drafting:
        assert step["rollout/spec_accept_rate"] == step[SPEC + "accepted"] / step[SPEC + "drafted"]
        assert step["rollout/spec_accept_length"] == 1 + step[SPEC + "accepted"] / step[SPEC + "drafts"]
    assert total(run, SPEC + "tokens") == sum(row[3] for row in run.rows) > 2000
    if run.mode == "sync":
        assert all("actor/kl_loss" in step and "actor/reward_kl_penalty" in step for step in run.steps)
    if run.mode == "fully_async":
        assert total(run, "fully_async/partial/total_partial_num") > 0


@pytest.mark.slow
def test_validations_with_one_seed_give_the_same_answers(run, validations):
    """At least 95 % of the answers are equal; rounding may change the others."""
    logged, counted = validations(run.folder)
    assert logged and counted
    assert min(*logged.values(), *counted.values()) >= 0.95


@pytest.mark.slow
def test_answers_are_those_of_the_mode_without_sam(run, without):
    """At least 95 % of the answers are equal, turns after a tool call included; rounding may change the others."""
    both = run.answers.keys() & without.answers.keys()
    moved = {place for place in both if run.answers[place].prompt_hash != without.answers[place].prompt_hash}
    if run.mode in ANSWERS_PLACED_BY_TIME:
        assert all(step > 1 for step, *_ in moved)
    else:
        assert not moved
    same_prompt = both - moved
    assert len(same_prompt) > 48
    equal = sum(run.answers[place].tokens == without.answers[place].tokens for place in same_prompt)
    assert equal >= 0.95 * len(same_prompt)


@pytest.mark.slow
def test_report_compares_the_log_probs_of_rollout_and_training(run, without, tmp_path):
    """Each token trained on is compared once. one_step_off recomputes the log-probabilities because RUNS says so;
    fully_async does not."""
    assert report(["report", f"--off={without.folder}", f"--on={run.folder}", f"--out={tmp_path}"]) == 0
    missing = ["a step log has no `rollout_corr/log_prob_diff/*`"] if run.mode == "fully_async" else []
    assert re.findall("Missing: (.*?),", (tmp_path / "report.md").read_text()) == missing
    summary = json.loads((tmp_path / "summary.json").read_text())
    for arm, of_run in (("off", without), ("on", run)) if not missing else ():
        counts = summary[arm]["log_prob_differences"]
        share = sum(counts.values()) / round(sum(64 * step["response_length/mean"] for step in of_run.steps))
        assert counts["0.1"] == counts["inf"] == 0
        assert 0.5 < share < 1 if RUNS[run.mode][0] == "tiny_tools" else share == 1, "but for what a tool says"


@pytest.mark.slow
def test_answers_are_those_of_a_synchronous_run(run, off):
    """At least 95 % of the answers begin with the synchronous run's answer; rounding may change the others."""
    expected = {place: answer for place, answer in read_answers(off).items() if place[0] == 1}
    both = run.answers.keys() & expected.keys()
    assert len(both) > 48, "of the 64 that are trained on first; a trainer may end before the last is done"
    pairs = [(run.answers[place], expected[place]) for place in both]
    equal = sum(a.tokens[: len(b.tokens)] == b.tokens for a, b in pairs)
    assert equal >= 0.95 * len(both)
