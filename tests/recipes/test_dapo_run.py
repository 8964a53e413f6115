# SPDX-License-Identifier: Apache-2.0
"""DAPO for real: verl's trainer, vLLM's engine, the tiny Qwen3, two training steps with SAM and one without."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_rl import launch
from llm_rl.reports.answers import compare_answers, read_answers

ROOT = Path(launch.ROOT)


def train(folder, *overrides):
    script = ROOT / "llm_rl" / "qwen3" / "run_dapo_qwen3_tiny_cpu.sh"
    result = subprocess.run([script, *overrides, "--run-dir", folder], capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dapo")
    result = train(folder, "sam=batch", "steps=2")
    return SimpleNamespace(
        answers=read_answers(folder),
        output=result.stdout,
        record=json.loads((folder / "run.json").read_text()),
        steps=launch.read_steps(folder / "steps.jsonl"),
        rows=[json.loads(line) for line in (folder / "engine-0.jsonl").read_text().splitlines()],
        log=(folder / "verl.log").read_text(),
    )


def test_two_steps_are_trained(run):
    assert [step["step"] for step in run.steps] == [1, 2]
    assert run.record["status"] == "ok"
    assert all(step["data"]["actor/grad_norm"] > 0 for step in run.steps)
    assert "step 2/2" in run.output


def test_step_log_has_the_speculation_metrics(run):
    for step in run.steps:
        data = {k.removeprefix("rollout/spec/"): v for k, v in step["data"].items() if k.startswith("rollout/spec/")}
        assert data["drafted"] > 0 and data["accepted"] > 0
        assert 0 < data["switch_on_share"] < 1  # 64 answers at once, the tail below the threshold
        assert data["tokens_per_step"] == pytest.approx(data["tokens"] / data["request_steps"])
        # what is accepted behind the end of an answer is not emitted
        assert data["request_steps"] < data["tokens"] <= data["request_steps"] + data["accepted"]
        assert data["draft_ms"] > 0 and data["tail_s"] > 0 and data["index_bytes"] > 0
        sources = ("request", "group", "history", "corpus")
        assert data["proposed"] == sum(data[f"proposed_{source}"] for source in sources)
        assert data["accepted_group"] > 0 and data["accepted_request"] > 0
        assert all(data[f"accepted_{source}"] <= data[f"proposed_{source}"] for source in sources)
    assert sum(row[4] for row in run.rows) == sum(step["data"]["rollout/spec/drafted"] for step in run.steps)


def test_drafts_follow_only_steps_within_the_threshold(run):
    for before, row in zip(run.rows, run.rows[1:], strict=False):
        if row[4]:
            assert before[2] <= run.record["threshold"]


def test_every_answer_is_logged_in_its_place(run):
    for step in run.steps:
        answers = {place[1:]: answer for place, answer in run.answers.items() if place[0] == step["step"]}
        prompts = len(answers) // 8
        assert prompts >= 8 and set(answers) == {(prompt, sibling) for prompt in range(prompts) for sibling in range(8)}
        assert sum(len(answer.tokens) for answer in answers.values()) == step["data"]["rollout/spec/tokens"]
        assert all(len(answer.log_probs) == len(answer.tokens) for answer in answers.values())
        for prompt in range(prompts):
            siblings = [answers[prompt, sibling] for sibling in range(8)]
            assert len({answer.asked for answer in siblings}) == 1
            assert len({tuple(answer.tokens) for answer in siblings}) > 1


def test_without_sam_the_answers_are_the_same(run, tmp_path):
    """All tokens of step 1 but for those behind one that rounding has turned: at most one answer in twenty."""
    train(tmp_path, "sam=off", "steps=1")
    off = read_answers(tmp_path)
    step = compare_answers(off, {place: answer for place, answer in run.answers.items() if place[0] == 1})["steps"][0]
    assert step["answers"] >= 64 and step["tokens"] > 2000
    assert step["answers_equal"] >= 0.95 * step["answers"]
    assert step["log_prob_difference"] < 1e-3


def test_rollout_log_probs_agree_with_the_trainers(run):
    """Wrong logits or weights that were not updated would show here."""
    for step in run.steps:
        assert step["data"]["rollout_corr/log_ppl_abs_diff"] < 5e-3


def test_log_begins_with_what_runs(run):
    first = run.log.splitlines()[:3]
    assert first[0] == "pin set vllm-0.23"
    assert first[1] == f"tree vllm {run.record['tree_ids']['vllm']}"


def test_poll_interval_reaches_the_replay_buffer():
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    sampler = {"max_off_policy_threshold": None, "max_off_policy_strategy": "drop", "sampler_kwargs": {}}
    config = {
        "trainer": {"v1": {"sampler": sampler | {"poll_interval": 0.1}}},
        "data": {"train_batch_size": 4},
        "algorithm": {},
    }
    trainer = SimpleNamespace(
        config=OmegaConf.create(config),
        trainer_mode="sync",
        _add_prompts_to_generate=None,
        _resolve_filter_groups_metric=lambda: None,
    )
    assert PPOTrainer._build_replay_buffer(trainer).poll_interval == 0.1
