# SPDX-License-Identifier: Apache-2.0
"""Recipes of this machine's CPU: vLLM's own platform, not that of vllm-ascend, which is installed beside it."""

import os
from types import SimpleNamespace

import pytest

os.environ["VLLM_PLUGINS"] = ""


class Loader(list):
    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


@pytest.fixture
def make_trainer(monkeypatch):
    """make_trainer(config, prompts, generate): verl's trainer as far as it asks for prompts, p0, p1 and so on."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base

    class Trainer(trainer_base.PPOTrainer):
        def __init__(self, config, prompts, generate):
            self.config = OmegaConf.create(config)
            self.trainer_mode, self.global_steps, self.use_critic = "sync", 1, False
            self.train_dataloader = Loader({"raw_prompt": [f"p{i}"], "index": [i]} for i in range(prompts))
            self.train_dataloader_it = None
            self.asked_chunks, self.returned_chunks = [], []
            self.agent_loop_manager = SimpleNamespace(generate_sequences=generate)

        def on_sample_end(self): ...

        def fit(self): ...

    Trainer.__abstractmethods__ = frozenset()
    monkeypatch.setattr(trainer_base.tq, "kv_batch_put", lambda **kwargs: None)
    return Trainer
