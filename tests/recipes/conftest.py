# SPDX-License-Identifier: Apache-2.0
"""Run recipes on this machine's CPU with vLLM's own platform, although vllm-ascend is installed too."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_rl import config, demo, forks, launch

HERE = Path(__file__).resolve().parent
os.environ["VLLM_PLUGINS"] = ""


def with_path(*folders):
    """PYTHONPATH with these folders in front."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """Environment variables of a run whose processes are forks of one that has imported verl and vLLM. The engine saves
    its history whenever no request runs."""
    folder = tmp_path_factory.mktemp("forks")
    plan = launch.plan(config.load(demo.RECIPE, []), folder)
    environment = os.environ | plan.variables | {"PYTHONPATH": with_path(HERE.parent / "common")}
    with forks.server(folder, [*demo.MODULES, "saves_at_once"], environment):
        yield forks.variables(folder)


@pytest.fixture(scope="session")
def train(forked):
    """train(folder, *overrides, script="tiny", validate=False, site=None, **variables): run a recipe for a CPU.

    validate: validate before the first step and after each step, always with the same seeds: 8 prompts in two batches
    with 4 answers each, written to folder/validation. site: folder of the sitecustomize.py that all processes import,
    none of them forked.
    """

    def run(folder, *overrides, script="tiny", validate=False, site=None, **variables):
        if validate:
            val_kwargs = ("do_sample=true", "temperature=1", "n=4", "+seed=3")
            overrides += tuple(f"verl.actor_rollout_ref.rollout.val_kwargs.{setting}" for setting in val_kwargs)
            overrides += ("trainer.val_before_train=true", "trainer.test_freq=1", "verl.data.val_max_samples=8")
            overrides += ("verl.data.val_batch_size=5", f"verl.trainer.validation_data_dir={folder}/validation")
        program = launch.ROOT / "llm_rl" / "qwen3" / f"run_dapo_qwen3_{script}_cpu.sh"
        command = [program, *overrides, "--run-dir", folder]
        if site:
            variables["PYTHONPATH"] = with_path(HERE / site, HERE.parent / "common")
        env = os.environ | ({} if site else forked) | variables
        result = subprocess.run(command, capture_output=True, text=True, env=env)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def validations():
    """validations(folder): return the `val/unchanged` that a run logged, by step, and the same shares recomputed."""

    def read(folder):
        rows = map(json.loads, (folder / "steps.jsonl").read_text().splitlines())
        logged = {row["step"]: row["data"]["val/unchanged"] for row in rows if "val/unchanged" in row["data"]}
        counted, before = {}, None
        for path in sorted((folder / "validation").glob("*.jsonl"), key=lambda path: int(path.stem)):
            texts = {}
            for number, row in enumerate(map(json.loads, path.read_text().splitlines())):
                answer = row["uid"].split("_")[1] if "uid" in row else number % 4
                texts[row["input"], answer] = row["output"]
            assert len(texts) == 32 and len({*texts.values()}) > 16
            if before is not None:
                counted[int(path.stem)] = sum(before[place] == text for place, text in texts.items()) / 32
            before = texts
        return logged, counted

    return read


@pytest.fixture(scope="session")
def off(train, tmp_path_factory):
    """Folder of a run of two synchronous training steps with validations and without speculation."""
    folder = tmp_path_factory.mktemp("off")
    train(folder, "sam=off", "steps=2", "checkpoints.every=1", validate=True)
    return folder


class Loader:
    """A dataloader of one-prompt batches that counts the batches it has returned."""

    def __init__(self, dataset, **settings):
        self.dataset, self.given = dataset, 0

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        while self.given < len(self.dataset):
            self.given += 1
            yield dict(self.dataset[self.given - 1])
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


@pytest.fixture
def make_trainer(monkeypatch):
    """make_trainer(config, prompts, generate): the part of verl's trainer that sends the prompts p0, p1, ..."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base

    common = {"trainer": {"v1": {"sampler": {}}, "total_epochs": 1, "total_training_steps": 3}}
    common["data"] = {"train_files": "", "val_files": "", "val_batch_size": 1, "dataloader_num_workers": 0}

    class Trainer(trainer_base.PPOTrainer):
        def __init__(self, config, prompts, generate):
            self.config = OmegaConf.merge(common, config)
            self.trainer_mode, self.global_steps, self.use_critic = "sync", 1, False
            self.tokenizer = self.processor = None
            self.parameter_sync_step = 1
            rows = [{"raw_prompt": [f"p{i}"], "index": [i]} for i in range(prompts)]
            monkeypatch.setattr(trainer_base, "create_rl_dataset", lambda *args, **kwargs: rows)
            self._init_dataloader()
            self.agent_loop_manager = SimpleNamespace(generate_sequences=generate)

    Trainer.__abstractmethods__ = frozenset()
    monkeypatch.setattr(trainer_base, "StatefulDataLoader", Loader)
    monkeypatch.setattr(trainer_base, "create_rl_sampler", lambda *args: None)
    monkeypatch.setattr(trainer_base.tq, "kv_batch_put", lambda **kwargs: None)
    return Trainer
