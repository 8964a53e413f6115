# SPDX-License-Identifier: Apache-2.0
"""verl's agent loop keeps the answers to a prompt together, seeds each request and collects the servers' counters."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from sam_core.engines.verl.rollout_log import rollout_metrics
from sam_core.engines.vllm.step_log import SUMS
from sam_core.seeds import request_seed
from verl import DataProto
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorkerBase, AsyncLLMServerManager
from verl.workers import config as workers_config

PROMPTS, SIBLINGS = 8, 4
SEEDED = {"vllm": {"speculative_config": {"method": "sam", "sam": {"verify": "seeded"}}}}
ROLLOUT = {"name": "vllm", "n": SIBLINGS, "seed": 7, "temperature": 1.0, "top_p": 1.0, "engine_kwargs": SEEDED}
ROLLOUT |= {"calculate_log_probs": False, "free_cache_engine": False}
ROLLOUT |= {"val_kwargs": {"n": 1, "top_p": 1.0, "temperature": 0.0}}
ROLLOUT |= {"agent": {"default_agent_loop": "single_turn_agent"}}


class Result(SimpleNamespace):
    """The result of an actor's call, which can be awaited or passed to ray.get."""

    def __await__(self):
        yield from asyncio.sleep(0).__await__()  # lets other calls begin
        return self.value


class Handle:
    """A Ray handle of an actor that lives in this process."""

    def __init__(self, actor):
        self.actor = actor

    def __getattr__(self, name):
        def remote(*args, **kwargs):
            result = getattr(self.actor, name)(*args, **kwargs)
            return Result(value=asyncio.run(result) if asyncio.iscoroutine(result) else result)

        return SimpleNamespace(remote=remote)


class Server:
    """A server that records the prompts it receives."""

    def __init__(self, rank):
        self.rank, self.prompts = rank, []

    def generate(self, request_id, prompt_ids, sampling_params, image_data):
        self.prompts.append(tuple(prompt_ids))

    def spec_stats(self, write):
        return dict.fromkeys(SUMS, 0) | {"drafted": 10 + self.rank, "busy_s": 1.0, "written": write}


def column(values):
    """Return a batch column of Python objects."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


class Worker(AgentLoopWorkerBase):
    """An agent loop worker that returns the requests' seeds and groups instead of running agent loops."""

    def __init__(self, config):
        self.config = config

    async def _run_agent_loop(self, sampling_params, trajectory, **kwargs):
        assert "sampling_seed" not in kwargs
        return sampling_params.get("seed"), sampling_params.get("extra_args", {}).get("sam_group")

    def _postprocess(self, outputs):
        rows = {"prompts": torch.zeros(len(outputs), 2), "attention_mask": torch.ones(len(outputs), 4)}
        metrics = [{"generate_sequences": 1.0, "tool_calls": 0.0}] * len(outputs)
        asked = dict(zip(("seeds", "names"), map(column, zip(*outputs, strict=True)), strict=True))
        return DataProto.from_dict(rows, asked, meta_info={"metrics": metrics})


@pytest.fixture
def servers(monkeypatch):
    monkeypatch.setattr(agent_loop.ray, "get", lambda results: [result.value for result in results])
    return [Handle(Server(rank)) for rank in range(3)]


@pytest.fixture
def manager(servers):
    """manager(engine_kwargs): an AgentLoopManager with two workers and three servers."""

    def make(engine_kwargs=SEEDED):
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT | {"engine_kwargs": engine_kwargs}}})
        manager = object.__new__(AgentLoopManager)
        manager.config, manager.server_handles, manager.reward_model_manager = config, servers, None
        manager.agent_loop_workers = [Handle(Worker(config)) for _ in range(2)]
        manager.num_rollouts, manager.row_seeds = 0, workers_config.row_seeds(config.actor_rollout_ref.rollout)
        return manager

    return make


def batch(**meta_info):
    return DataProto.from_dict({"input_ids": torch.zeros(PROMPTS * SIBLINGS, 2)}, meta_info=meta_info)


def names(agent, validate=False, **fields):
    """Return the groups of a batch's requests. fields: columns of the batch, as lists by name."""
    asked = batch(validate=validate)
    asked.non_tensor_batch |= {name: column(values) for name, values in fields.items()}
    return agent.generate_sequences(asked).non_tensor_batch["names"].tolist()


def balancer(servers, speculative):
    engine = {"vllm": {"speculative_config": speculative}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT | {"engine_kwargs": engine}}})
    return AsyncLLMServerManager(config, list(servers))


def test_siblings_share_a_server_and_prompts_spread(servers):
    async def ask():
        manager = balancer(servers, '{"method": "sam"}')  # options may be JSON
        turns = [(f"{i}-{sibling}", [i, 1, 2]) for i in range(9) for sibling in range(SIBLINGS)]
        await asyncio.gather(*[manager.generate(r, prompt_ids=prompt, sampling_params={}) for r, prompt in turns])
        await manager.generate("0-0", prompt_ids=[0, 1, 2, 3], sampling_params={})  # a second turn
        assert set(manager.in_flight.values()) == {0} and len(manager.in_flight) == 3

    asyncio.run(ask())
    seen = [Counter(server.actor.prompts) for server in servers]
    later = [server for server in seen if server.pop((0, 1, 2, 3), 0)]
    assert [list(server.values()) for server in seen] == 3 * [3 * [SIBLINGS]]
    assert [(0, 1, 2) in server for server in later] == [True]


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}], ids=str)
def test_other_methods_are_balanced_as_released(servers, speculative):
    manager = balancer(servers, speculative)
    chosen = [[manager._choose_server(f"request {i}", prompt) for i in range(9)] for prompt in ([1, 2, 3], [4])]
    assert set(Counter(map(id, chosen[0])).values()) == {3} and chosen[1] == chosen[0]


def test_each_request_has_its_seed(manager):
    agent, rows = manager(), range(PROMPTS * SIBLINGS)

    def seeds(agent, **meta_info):
        return agent.generate_sequences(batch(**meta_info)).non_tensor_batch["seeds"].tolist()

    assert seeds(agent) == [request_seed(7, 0, *divmod(row, SIBLINGS)) for row in rows]
    for step, done in ((1, 0), (2, 8)):  # rows of the validation so far
        checked = seeds(agent, validate=True, validated_rows=done)
        assert checked == [request_seed(7, step, -1 - done - row, 0) for row in rows]
    folder = {"vllm": {"speculative_config": {"method": "sam", "sam": {"history": "/runs/seeded"}}}}
    for engine in ({}, folder):
        assert {*seeds(manager(engine))} == {None}


def test_each_request_names_its_group(manager):
    """A prompt's siblings share a name in all rollouts; validation has other names, and without SAM there are none."""
    prompts = [[{"content": str(row // SIBLINGS)}] for row in range(PROMPTS * SIBLINGS)]
    agent = manager()
    first = names(agent, raw_prompt=prompts)
    assert None not in first and list(Counter(first).values()) == PROMPTS * [SIBLINGS]
    assert names(agent, raw_prompt=prompts) == first
    assert not {*names(agent, raw_prompt=prompts, validate=True)} & {*first}
    assert set(names(manager({}), raw_prompt=prompts)) == {None}


def test_a_row_without_a_name_gets_none_of_the_row_before(manager):
    uids = [None if row % 2 else f"u{row}" for row in range(PROMPTS * SIBLINGS)]
    assert names(manager(), uid=uids) == [uid and f"uid {uid}" for uid in uids]


def test_counters_of_all_replicas_travel_with_the_batch(manager):
    agent = manager()
    first, second = agent.generate_sequences(batch()), agent.generate_sequences(batch())
    for done in (first, second):
        del done.meta_info["timing"]
    assert all(taken["written"] is True for taken in first.meta_info.values())
    assert rollout_metrics(first.meta_info)["rollout/spec/drafted"] == 10 + 11 + 12
    both = rollout_metrics(DataProto.concat([first, second]).meta_info)
    assert (both["rollout/spec/drafted"], both["rollout/spec/busy_s"]) == (66, 2)
    checked = agent.generate_sequences(batch(validate=True))
    assert {taken["written"] for name, taken in checked.meta_info.items() if name != "timing"} == {False}
