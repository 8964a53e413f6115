# SPDX-License-Identifier: Apache-2.0
"""verl and vLLM as released, with the plugins of sam_core, on vLLM's second runner: see tests/runner2/interpreter."""

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "runner2" / "interpreter"))
os.environ.update(
    VERL_PLATFORM="cpu",
    VERL_ENGINE_DEVICE="cuda",
    VERL_USE_EXTERNAL_MODULES="llm_rl.cpu_platform",
    VLLM_USE_V2_MODEL_RUNNER="1",
    VLLM_PLUGINS="sam,device,unpacked",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_CI_ENV="1",  # no warm-up
    VLLM_NO_USAGE_STATS="1",
    TRITON_INTERPRET="1",
    TORCHDYNAMO_DISABLE="1",
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
)

import pytest
import torch
from omegaconf import OmegaConf

TESTS = Path(__file__).resolve().parent.parent
FOLDERS = (TESTS / "runner2" / "interpreter", TESTS / "common", TESTS.parent / "testing" / "engines", TESTS.parent)
PATHS = [str(path) for path in FOLDERS]
TINY = TESTS.parent / "llm_rl" / "qwen3" / "tiny"
INSTALLED = Path(importlib.util.find_spec("verl").origin).parent
RAN = []
"""Sampling parameters and batch row of each agent loop that ran."""


class AgentLoop:
    """An agent loop without an engine that answers with one token."""

    def __init__(self, **kwargs): ...

    async def run(self, sampling_params, **row):
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

        RAN.append((sampling_params, row))
        answer = {"response_ids": [3], "response_mask": [1], "response_logprobs": [-0.5]}
        return AgentLoopOutput(prompt_ids=[1, 2], **answer, num_turns=1, metrics=AgentLoopMetrics(num_preempted=0))


class Worker:
    """verl's worker of agent loops without an engine: it receives prompts and makes requests."""

    def __init__(self, kind, config):
        from verl.experimental.agent_loop import agent_loop

        agent_loop._agent_loop_registry["test"] = {"_target_": "conftest.AgentLoop"}
        self.actor = actor = object.__new__(kind)
        actor.config, actor.rollout_config, actor.background_tasks = config, config.actor_rollout_ref.rollout, set()
        actor.llm_client = actor.tokenizer = actor.processor = actor.hf_model_type = actor.dataset_cls = None
        actor.tools, actor.reward_loop_worker_handles, actor.distillation_enabled = None, None, False
        self.generate_sequences = SimpleNamespace(remote=self.generate)


class WorkerV1(Worker):
    def __init__(self, config):
        from verl.trainer.ppo.v1 import agent_loop_tq

        super().__init__(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class, config)

    def generate(self, batch):
        async def run():
            await self.actor.generate_sequences(batch)
            await asyncio.gather(*self.actor.background_tasks)

        asyncio.run(run())


class WorkerV0(Worker):
    def __init__(self, config):
        from verl.experimental.agent_loop import agent_loop

        super().__init__(agent_loop.AgentLoopWorker, config)
        agent_loop.RolloutTraceConfig.init("", "", None)
        self.actor._agent_loop_postprocess = self.postprocess
        self.actor._postprocess = self.batch

    async def postprocess(self, output, validate, **row):
        await self.actor._compute_score([output], kwargs=row)
        return output

    def batch(self, outputs, **kwargs):
        from verl.protocol import DataProto

        metrics = [output.metrics.model_dump() for output in outputs]
        return DataProto.from_dict({"prompts": torch.zeros(len(outputs), 1)}, meta_info={"metrics": metrics})

    async def generate(self, batch):
        return await self.actor.generate_sequences(batch)


def overrides(node, name=""):
    """Yield a tree of settings as overrides for verl's command line; `++` also adds keys that verl does not define."""
    for key, value in node.items():
        path = f"{name}.{key}".lstrip(".")
        if isinstance(value, dict) and value:
            yield from overrides(value, path)
        else:
            yield f"++{path}={json.dumps(value)}"


def tiny(engine_kwargs):
    """Return the settings of tiny.yaml for an engine with these arguments."""
    settings = OmegaConf.to_container(OmegaConf.load(TESTS / "verl_plugin" / "tiny.yaml"))
    settings["actor_rollout_ref"]["model"]["path"] = str(TINY)
    settings["actor_rollout_ref"]["rollout"]["engine_kwargs"] = {"vllm": engine_kwargs}
    settings["data"] |= {"train_files": str(TINY / "train.parquet"), "val_files": str(TINY / "test.parquet")}
    return settings


def configuration(engine_kwargs, **rollout):
    """Return the part of verl's configuration of a run that agent loops read."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    rollout["val_kwargs"] = {"n": 1} | sampling | rollout.pop("val_kwargs", {})
    settings = {
        "name": "vllm",
        "n": 3,
        "seed": 7,
        "calculate_log_probs": True,
        "engine_kwargs": {"vllm": engine_kwargs},
    }
    settings |= {"agent": {"default_agent_loop": "test"}} | sampling | rollout
    return OmegaConf.create({"actor_rollout_ref": {"rollout": settings, "model": {}}, "data": {}})


@pytest.fixture
def make_manager(monkeypatch):
    """make_manager(engine_kwargs, v1=True, **rollout): verl's manager of agent loops, with two workers."""
    from verl.experimental.agent_loop import agent_loop
    from verl.trainer.ppo.v1 import agent_loop_tq

    for name in ("async_kv_put", "async_kv_batch_put"):
        monkeypatch.setattr(agent_loop_tq.tq, name, mock.AsyncMock())
    monkeypatch.setattr(agent_loop_tq.ray, "get", lambda results: results)

    def make(engine_kwargs, v1=True, **rollout):
        config = configuration(engine_kwargs, **rollout)
        manager = (agent_loop_tq.AgentLoopManagerTQ if v1 else agent_loop.AgentLoopManager)(config, llm_client=None)
        manager.agent_loop_workers = [(WorkerV1 if v1 else WorkerV0)(config) for _ in range(2)]
        return manager

    return make
