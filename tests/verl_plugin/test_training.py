# SPDX-License-Identifier: Apache-2.0
"""Two training steps of verl and vLLM as released, under Ray: with method sam drafts are accepted, and the answers are
those without it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest
from conftest import PATHS, TESTS, overrides, tiny

from llm_rl.reports.answers import read_answers
from llm_rl.steps import read_steps

SPEC = "rollout/spec/"
VARIABLES = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "SAM_ANSWER_LOG": "1",
}
SAM = {"speculative_config": {"method": "sam", "sam": {"verify": "seeded"}}}
PLAIN = {"additional_config": {"sam_verify": "seeded"}}


def train(folder, mode, engine_kwargs):
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the names of Ray's sockets are short
    settings = tiny(engine_kwargs)
    settings["trainer"] |= {"v1": {"trainer_mode": mode}, "default_local_dir": str(folder / "checkpoints")}
    settings["trainer"]["validation_data_dir"] = str(folder / "validation")
    settings["ray_kwargs"]["ray_init"]["_temp_dir"] = temporary
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(settings), f"hydra.run.dir={folder}/hydra"]
    path = [str(TESTS / "verl_plugin" / "forked"), *PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]
    logs = {"SAM_STEP_LOG": str(folder), "VERL_FILE_LOGGER_PATH": str(folder / "steps.jsonl")}
    env = os.environ | VARIABLES | logs | {"PYTHONPATH": os.pathsep.join(path)}
    with open(folder / "verl.log", "w") as log:
        status = subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT).returncode
    shutil.rmtree(temporary, ignore_errors=True)
    assert status == 0, (folder / "verl.log").read_text()[-20_000:]
    rows = [json.loads(line) for path in folder.glob("engine-*.jsonl") for line in path.read_text().splitlines()]
    steps = [step["data"] for step in read_steps(folder / "steps.jsonl")]
    return SimpleNamespace(mode=mode, answers=read_answers(folder), steps=steps, rows=rows, folder=folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A synchronous run without speculation."""
    return train(tmp_path_factory.mktemp("plain"), "sync", PLAIN)


@pytest.fixture(scope="module", params=["sync", "colocate_async"])
def sam(request, tmp_path_factory):
    """A run with SAM. In colocate_async, new weights interrupt answers, which go on with these weights."""
    return train(tmp_path_factory.mktemp(request.param), request.param, SAM)


def total(run, name):
    return sum(step.get(SPEC + name, 0) for step in run.steps)


def check_counts(run):
    """Check that validations are neither in the engines' logs nor in the counters."""
    assert total(run, "tokens") == sum(row[3] for row in run.rows) > 1000
    if run.mode == "sync":
        assert total(run, "tokens") == sum(len(answer.tokens) for answer in run.answers.values())


@pytest.mark.slow
def test_drafts_are_accepted_in_each_step(sam):
    steps = [step for step in sam.steps if SPEC + "tokens" in step]
    assert len(steps) == 2 and all(step[SPEC + "accepted"] > 0 for step in steps)
    assert total(sam, "accepted_group") > 0
    assert all(step[SPEC + "tokens_per_step"] > 1 for step in steps)
    assert any(name.startswith("rollout_corr/log_prob_diff/") for name in steps[-1])
    check_counts(sam)


@pytest.mark.slow
def test_answers_are_those_without_sam(sam, plain):
    """Interrupted answers are equal too. In colocate_async, timing decides to which step later prompts belong."""
    assert total(plain, "drafts") == 0
    check_counts(plain)
    assert {place[:2] for place in plain.answers} == {(step, prompt) for step in (1, 2) for prompt in range(4)}
    places = [place for place in plain.answers if sam.mode == "sync" or place[0] == 1]
    assert len(places) == (32 if sam.mode == "sync" else 16) and {*places} <= sam.answers.keys()
    for place in places:
        assert sam.answers[place].prompt_hash == plain.answers[place].prompt_hash
        assert sam.answers[place].tokens == plain.answers[place].tokens


@pytest.mark.slow
def test_validations_with_one_seed_give_the_same_answers(sam, plain):
    for run in (sam, plain):
        texts = []
        for path in sorted((run.folder / "validation").glob("*.jsonl"), key=lambda path: int(path.stem)):
            rows = map(json.loads, path.read_text().splitlines())
            texts.append(sorted((row["input"], row["output"]) for row in rows))
        assert len(texts) == 3 and len(texts[0]) == 8 and texts[0] == texts[1] == texts[2]
        assert [step["val/unchanged"] for step in run.steps if "val/unchanged" in step] == [1, 1]
