# SPDX-License-Identifier: Apache-2.0
"""The asynchronous trainers of verl, with SAM: drafts are verified, and answers are those of a synchronous run without.

The learning rate is 0, so that the weights of each update are the first ones again: a token then depends on its request's seed
and its position alone, in whichever order a trainer asks, aborts and resumes requests. The engines start with random
weights: an update that did not arrive would show.
"""

import json
import os
from types import SimpleNamespace

import pytest

from llm_rl.reports.answers import read_answers
from llm_rl.resume import read_steps

SPEC = "rollout/spec/"
ALL_PROMPTS = "algorithm.filter_groups=false"
TWO = [f"{key}=2" for key in ("data.train_batch_size", "data.gen_batch_size", "train.ppo_mini_batch_size")]
RUNS = {
    # of eight prompts in flight the first two are trained on, and the new weights interrupt the others
    "fully_async": ("tiny_tools", [ALL_PROMPTS, *TWO, "steps=4", "verl.async_training.staleness_threshold=3"]),
    "one_step_off": ("tiny", [ALL_PROMPTS]),
    "colocate_async": ("tiny_tools", []),
    "separate_async": ("tiny", []),
}
"""By trainer mode: the recipe, and overrides."""
TESTED = [*RUNS][: None if os.environ.get("TRAINER_MODES") == "all" else 1]
"""`make test-modes` asks for all; a run takes most of a minute."""


@pytest.fixture(scope="module", params=TESTED)
def run(request, train, tmp_path_factory):
    script, overrides = RUNS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    common = [f"trainer.mode={request.param}", "sam=batch", "sam_options.threshold=64", "train.lr=0", "steps=2"]
    train(folder, *common, *overrides, script=script)
    rows = [json.loads(line) for path in folder.glob("engine-*.jsonl") for line in path.read_text().splitlines()]
    return SimpleNamespace(
        mode=request.param,
        answers=read_answers(folder),
        steps=[step["data"] for step in read_steps(folder / "steps.jsonl")],
        rows=rows,
    )


def total(run, name):
    return sum(step.get(name, 0) for step in run.steps)


def test_drafts_are_verified_and_logged(run):
    assert total(run, SPEC + "accepted_group") > 0
    drafting = [step for step in run.steps if step[SPEC + "drafted"]]
    assert drafting
    for step in drafting:
        assert step["rollout/spec_accept_rate"] == step[SPEC + "accepted"] / step[SPEC + "drafted"]
        assert step["rollout/spec_accept_length"] == 1 + step[SPEC + "accepted"] / step[SPEC + "drafts"]
    assert total(run, SPEC + "tokens") == sum(row[3] for row in run.rows) > 2000
    if run.mode == "fully_async":
        assert total(run, "fully_async/partial/total_partial_num") > 0


def test_answers_are_those_of_a_synchronous_run(run, off):
    """All but those in which rounding has turned a token: at most one in twenty."""
    expected = {place: answer for place, answer in read_answers(off).items() if place[0] == 1}
    both = run.answers.keys() & expected.keys()
    assert len(both) > 48, "of the 64 that are trained on first; a trainer may end before the last is done"
    pairs = [(run.answers[place], expected[place]) for place in both]
    equal = sum(a.tokens[: len(b.tokens)] == b.tokens for a, b in pairs)
    assert equal >= 0.95 * len(both)


def test_separate_async_starts_without_engines_beside_the_trainer(monkeypatch):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1 import trainer_separate_async as module

    manager = SimpleNamespace(rollout_replicas=[], get_replicas=list)
    monkeypatch.setattr(trainer_base.PPOTrainer, "_setup", lambda self: setattr(self, "llm_server_manager", manager))
    monkeypatch.setattr(module.LLMServerManager, "create", lambda **kwargs: manager)
    monkeypatch.setattr(module, "CheckpointEngineManager", SimpleNamespace)
    monkeypatch.setattr(module, "omega_conf_to_dataclass", lambda config: config)
    trainer = object.__new__(module.PPOTrainerSeparateAsync)
    trainer._enable_hybrid_replicas, trainer.actor_rollout_wg = False, None
    rollout = {"prometheus": {"enable": False}, "checkpoint_engine": {}}
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    trainer._setup()
    assert trainer.current_mode == module.HybridEngineMode.TRAINER
