# SPDX-License-Identifier: Apache-2.0
"""The trainers of verl and of its recipe/dapo log what their rollouts did. Their own loop runs; ranks that answer by rote stand for
the workers."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from sam_core.engines.verl.rollout_log import rollout_meta
from sam_core.engines.vllm.step_log import SUMS
from torch.utils.data import DataLoader
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT.parent / "shared" / "upstream" / "verl-0.6.1-recipe-dapo"
RANKS, PROMPTS, SIBLINGS, WIDTH = 2, 4, 2, 4


class Workers:
    """What the trainer calls of its worker group and of its resource pools."""

    world_size = RANKS

    def __init__(self):
        self.rollouts = 0

    def generate_sequences(self, prompts):
        self.rollouts += 1
        return DataProto.concat([self.generate(rank, part) for rank, part in enumerate(prompts.chunk(RANKS))])

    def generate(self, rank, prompts):
        ids = prompts.batch["input_ids"]
        answers = torch.full((len(ids), WIDTH), 5)
        tensors = {
            "prompts": ids,
            "responses": answers,
            "input_ids": torch.cat([ids, answers], -1),
            "attention_mask": torch.ones(len(ids), 2 * WIDTH, dtype=torch.long),
            "position_ids": torch.arange(2 * WIDTH).expand(len(ids), -1),
        }
        drafter = {
            "sam_steps": 10,
            "sam_steps_on": 5,
            "sam_proposed": 50,
            "sam_bytes_used": 1000 * self.rollouts + rank,
        }
        taken = dict.fromkeys(SUMS, 0) | {"drafted": 40 + rank, "accepted": 10, "busy_s": 2.0 + rank} | drafter
        timing = {"timing": {"generate_sequences": 1.0}}
        return DataProto.from_dict(tensors, meta_info=rollout_meta(rank, self.rollouts, taken) | timing)

    def compute_log_prob(self, batch):
        zeros = torch.zeros(batch.batch["responses"].shape)
        return DataProto.from_dict({"old_log_probs": zeros, "entropys": zeros})

    def update_actor(self, batch):
        return DataProto(meta_info={"metrics": {"actor/lr": [0.0]}})

    def load_checkpoint(self, *args, **kwargs): ...

    def get_n_gpus(self):
        return RANKS


def dapo_trainer():
    if not RECIPE.is_dir():
        pytest.skip(f"recipe/dapo of verl's git tag is not at {RECIPE}: it is in no package")
    spec = importlib.util.spec_from_file_location("dapo_ray_trainer", RECIPE / "dapo_ray_trainer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RayDAPOTrainer


def prompt_batch():
    return {
        "input_ids": torch.arange(PROMPTS * WIDTH).reshape(PROMPTS, WIDTH),
        "attention_mask": torch.ones(PROMPTS, WIDTH, dtype=torch.long),
        "position_ids": torch.arange(WIDTH).expand(PROMPTS, -1),
        "raw_prompt_ids": np.array([[1]] * PROMPTS + [None], dtype=object)[:-1],
    }


def reward(batch, return_dict=True):
    """Answers to every second prompt differ in reward: dynamic sampling keeps those."""
    scores = torch.tensor([float(row % (2 * SIBLINGS) == 0) for row in range(len(batch))])
    tensor = torch.zeros(len(batch), WIDTH)
    tensor[:, -1] = scores
    return {"reward_tensor": tensor, "reward_extra_info": {"acc": scores.tolist()}}


def logged(trainer_class, name, folder, tmp_path, monkeypatch, *overrides):
    """Runs a step of a trainer; what it logs."""
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "steps.jsonl"))
    search = "hydra.searchpath=[pkg://verl.trainer.config]"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(
            name,
            [
                search,
                f"data.train_batch_size={PROMPTS}",
                f"actor_rollout_ref.rollout.n={SIBLINGS}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
                "algorithm.adv_estimator=grpo",
                "trainer.logger=[file]",
                "trainer.val_before_train=False",
                "trainer.balance_batch=False",
                "trainer.resume_mode=disable",
                "trainer.total_epochs=1",
                *overrides,
            ],
        )
    trainer = object.__new__(trainer_class)
    workers = Workers()
    trainer.__dict__ |= {
        "config": config,
        "actor_rollout_wg": workers,
        "train_dataloader": DataLoader([prompt_batch() for _ in range(3)], batch_size=None, collate_fn=dict),
        "total_training_steps": 1,
        "reward_fn": reward,
        "val_reward_fn": None,
        "use_critic": False,
        "use_rm": False,
        "use_reference_policy": False,
        "async_rollout_mode": False,
        "resource_pool_manager": workers,
    }
    trainer.fit()
    (step,) = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    return step["data"], workers.rollouts


def test_step_log_counts_every_round(tmp_path, monkeypatch):
    trainer = dapo_trainer()
    filters = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc", "data.gen_batch_size=4"]
    log, rounds = logged(trainer, "dapo_trainer", RECIPE / "config", tmp_path, monkeypatch, *filters)
    assert log["train/num_gen_batches"] == rounds == 2
    assert log["rollout/spec/drafted"] == 2 * (40 + 41)
    assert log["rollout/spec/accepted"] == 40
    assert log["rollout/spec/proposed"] == 200
    assert log["rollout/spec/busy_s"] == 6  # the slower rank's
    assert log["rollout/spec/index_bytes"] == 2001


def test_step_log_of_verls_own_trainer(tmp_path, monkeypatch):
    import verl.trainer

    folder = Path(verl.trainer.__file__).parent / "config"
    log, rounds = logged(RayPPOTrainer, "ppo_trainer", folder, tmp_path, monkeypatch)
    assert rounds == 1
    assert log["rollout/spec/drafted"] == 81


def test_file_logger_adds_each_step_at_once(tmp_path, monkeypatch):
    """A run that is killed leaves the steps it has logged, and one that resumes does not wipe them."""
    from verl.utils.tracking import FileLogger

    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    killed, resumed = (FileLogger("project", "run") for _ in range(2))
    killed.log({"x": 1.5}, 1)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1]
    resumed.log({"x": 1.5}, 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
