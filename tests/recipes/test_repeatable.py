# SPDX-License-Identifier: Apache-2.0
"""What makes a seeded training run repeat: a seed for each request, and batches that the timing of answers cannot
change."""

import asyncio
import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest
from omegaconf import OmegaConf
from sam_core.seeds import request_seed

SEEDED = {"vllm": {"speculative_config": {"method": "sam", "sam": {"verify": "seeded"}}}}


class Worker:
    """verl's worker of agent loops, from the prompts it is sent to the requests that it makes."""

    def __init__(self, config):
        from verl.trainer.ppo.v1 import agent_loop_tq

        self.actor = object.__new__(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
        self.actor.config, self.actor.background_tasks, self.asked = config, set(), []
        self.actor._run_agent_loop = self.run
        self.generate_sequences = SimpleNamespace(remote=lambda batch: asyncio.run(self.generate(batch)))

    async def generate(self, batch):
        await self.actor.generate_sequences(batch)
        await asyncio.gather(*self.actor.background_tasks)

    async def run(self, sampling_params, trajectory, trace, session_id, **prompt):
        name = sampling_params.get("extra_args", {}).get("sam_group")
        self.asked.append((prompt.get("sam_place"), session_id, sampling_params.get("seed"), name))


@pytest.fixture
def manager(monkeypatch):
    """verl's manager of agent loops with two workers."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", mock.AsyncMock())
    monkeypatch.setattr(agent_loop_tq.ray, "get", lambda results: results)

    def make(engine_kwargs):
        rollout = {"n": 3, "seed": 7, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}
        rollout |= {"agent": {"default_agent_loop": "single_turn_agent"}, "engine_kwargs": engine_kwargs}
        rollout |= {"val_kwargs": {"n": 1, "temperature": 0.0, "top_p": 1.0, "top_k": -1}}
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
        manager = agent_loop_tq.AgentLoopManagerTQ(config, llm_client=None)
        manager.agent_loop_workers = [Worker(config), Worker(config)]
        return manager

    return make


def ask(manager, prompts, step, **more):
    """The requests made for a batch: (step and number of the prompt, number of the answer, seed, group) of each."""
    from verl.utils import tensordict_utils as tu

    batch = tu.get_tensordict({"uid": [f"u{i}" for i in range(prompts)], "index": list(range(prompts))})
    for name, value in {"global_steps": step, **more}.items():
        tu.assign_non_tensor_data(batch, name, value)
    for worker in manager.agent_loop_workers:
        worker.asked = []
    manager.generate_sequences(batch)
    return [request for worker in manager.agent_loop_workers for request in worker.asked]


def test_each_request_has_its_seed(manager):
    """A batch of a step, one that refills it, a validation, which does not count, and a further prompt; the next
    step."""
    seeded = manager(SEEDED)
    for step, prompts, siblings in ((1, range(4), 3), (1, (4, 5), 3), (1, (-1, -2), 1), (1, (6,), 3), (2, range(4), 3)):
        expected = [([step, p], s, request_seed(7, step, p, s)) for p in prompts for s in range(siblings)]
        asked = ask(seeded, len(prompts), step=step, **{"validate": True} if siblings == 1 else {})
        assert [request[:3] for request in asked] == expected
    assert {seed for _, _, seed, _ in ask(manager({}), 4, step=1)} == {None}


def test_each_request_names_its_group(manager):
    """The siblings of a prompt in every step and epoch, apart from validation; without sam no request has a name."""

    def names(manager, **more):
        return [name for *_, name in ask(manager, 4, agent_name="single_turn_agent", **more)]

    sam = manager({"vllm": {"speculative_config": {"method": "sam"}}})
    first = names(sam, step=1)
    assert None not in first and len(first) == 12
    assert names(sam, step=2) == first
    assert not {*names(sam, step=1, validate=True)} & {*first}
    for other in ({}, {"vllm": {"speculative_config": {"method": "ngram"}}}):
        assert {*names(manager(other), step=1)} == {None}


def test_what_a_request_asks_for_stays(manager):
    """A worker of the user's own may have given it further arguments, and a group."""
    worker = manager({"vllm": {"speculative_config": {"method": "sam"}}}).agent_loop_workers[0]
    seen = []

    async def run(sampling_params, **kwargs):
        seen.append(sampling_params["extra_args"])

    worker.actor._run_agent_loop = run
    trajectory = {"step": 1, "validate": False}
    for given in ({"other": 1}, {"other": 1, "sam_group": "own"}):
        asyncio.run(worker.actor._run_prompt({"uid": "u"}, {"extra_args": given}, trajectory))
    assert seen == 3 * [{"other": 1, "sam_group": "uid u"}] + 3 * [{"other": 1, "sam_group": "own"}]


def test_batch_holds_the_first_prompts_in_the_order_asked(monkeypatch):
    """Forty prompts with ids in no order; answers in the order of their ends, the later prompts' first."""
    from verl.trainer.ppo.v1 import replay_buffer

    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **kwargs: None)
    uids = [f"{i * 7919 % 10007:05d}-x" for i in range(40)]
    buffer = object.__new__(replay_buffer.ReplayBuffer)
    buffer.prompt_global_steps = {"train": dict.fromkeys(uids, 1)}
    buffer.partitions = {"train": {f"{uid}_{s}_0": {"tag": uid} for s in (10, 2) for uid in reversed(uids)}}
    served = set(uids) - {uids[3]}
    selected, snapshot, _ = buffer._select_prompt_uids("train", served, 8)
    assert selected == uids[:3] + uids[4:9]
    batch = buffer._materialize_batch("train", selected, snapshot)
    assert batch.keys == [f"{uid}_{s}_0" for uid in selected for s in (2, 10)]
    assert [tag["tag"] for tag in batch.tags] == [uid for uid in selected for _ in range(2)]


def test_next_step_begins_behind_the_last_prompt_taken(make_trainer):
    """The trainer asks four prompts and two more; the batch is full with the fifth: the sixth is the next step's
    first."""
    asked, uids = [], []

    def generate(batch):
        asked.extend(batch["raw_prompt"])
        uids.extend(batch["uid"])

    def sample(global_steps, partition_id, batch_size):
        trainer._add_prompts_to_generate(1)
        trainer._add_prompts_to_generate(1)
        return SimpleNamespace(keys=[f"{uids[i]}_0_0" for i in (0, 1, 3, 4)], extra_info={}), {}

    class Sampled(Exception): ...

    config = {"data": {"train_batch_size": 4, "gen_batch_size": 1}, "algorithm": {}}
    trainer = make_trainer(config | {"actor_rollout_ref": {"rollout": {"temperature": 1.0}}}, 20, generate)
    trainer.replay_buffer, trainer.on_sample_end = SimpleNamespace(sample=sample), mock.Mock(side_effect=Sampled)
    for _ in range(2):
        first = uids.copy()
        uids.clear()
        trainer._add_batch_to_generate()
        with contextlib.suppress(Sampled):
            trainer._step_once({}, {}, 4)
        trainer.global_steps += 1
    assert asked == [f"p{i}" for i in (*range(6), *range(5, 11))]
    assert uids[0] not in first, "asked again under its old id"
    assert not trainer.asked_chunks and [list(c["raw_prompt"]) for c in trainer.returned_chunks] == [["p10"]]
