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
from verl.workers.config import row_seeds

PROMPTS, SIBLINGS = 8, 4
ROLLOUT = {
    "name": "vllm",
    "n": SIBLINGS,
    "seed": 7,
    "temperature": 1.0,
    "top_p": 1.0,
    "calculate_log_probs": False,
    "free_cache_engine": False,
    "val_kwargs": {"n": 1, "top_p": 1.0, "temperature": 0.0},
    "agent": {"default_agent_loop": "single_turn_agent"},
    "engine_kwargs": {"vllm": {"speculative_config": {"method": "sam", "sam": {"verify": "seeded"}}}},
}


class Result:
    """What a call of an actor returns: to be awaited, or to be passed to ray.get."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield from asyncio.sleep(0).__await__()  # others begin meanwhile
        return self.value


class Handle:
    """A Ray handle of an actor that lives in this process."""

    def __init__(self, actor):
        self.actor = actor

    def __getattr__(self, name):
        def remote(*args, **kwargs):
            result = getattr(self.actor, name)(*args, **kwargs)
            return Result(asyncio.run(result) if asyncio.iscoroutine(result) else result)

        return SimpleNamespace(remote=remote)


class Server:
    """Counts the prompts that it is sent."""

    def __init__(self, rank):
        self.rank, self.prompts = rank, []

    def generate(self, request_id, prompt_ids, sampling_params, image_data):
        self.prompts.append(tuple(prompt_ids))

    def spec_stats(self, write):
        return dict.fromkeys(SUMS, 0) | {"drafted": 10 + self.rank, "busy_s": 1.0, "written": write}


class Worker(AgentLoopWorkerBase):
    """An agent loop worker up to the agent loop itself."""

    def __init__(self, config):
        self.config, self.asked, self.names = config, [], []

    async def _run_agent_loop(self, sampling_params, trajectory, **kwargs):
        assert "sampling_seed" not in kwargs
        self.asked.append(sampling_params.get("seed"))
        self.names.append(sampling_params.get("extra_args", {}).get("sam_group"))

    def _postprocess(self, outputs):
        rows = {"prompts": torch.zeros(len(outputs), 2), "attention_mask": torch.ones(len(outputs), 4)}
        metrics = [{"generate_sequences": 1.0, "tool_calls": 0.0}] * len(outputs)
        asked = np.array(self.asked)
        self.asked = []
        return DataProto.from_dict(rows, {"asked": asked}, meta_info={"metrics": metrics})


@pytest.fixture
def servers(monkeypatch):
    monkeypatch.setattr(agent_loop.ray, "get", lambda results: [result.value for result in results])
    return [Handle(Server(rank)) for rank in range(3)]


@pytest.fixture
def manager(servers):
    """AgentLoopManager with two workers and three servers."""

    def make(**rollout):
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT | rollout}})
        manager = object.__new__(AgentLoopManager)
        manager.config, manager.server_handles, manager.reward_model_manager = config, servers, None
        manager.agent_loop_workers = [Handle(Worker(config)) for _ in range(2)]
        manager.num_rollouts, manager.row_seeds = 0, row_seeds(config.actor_rollout_ref.rollout)
        return manager

    return make


def batch(**meta_info):
    return DataProto.from_dict({"input_ids": torch.zeros(PROMPTS * SIBLINGS, 2)}, meta_info=meta_info)


def names(agent, validate=False, **fields):
    """The groups of a batch's requests; fields: of its rows, lists by name."""
    asked = batch(validate=validate)
    for name, values in fields.items():
        asked.non_tensor_batch[name] = np.empty(len(values), object)
        asked.non_tensor_batch[name][:] = values
    for worker in agent.agent_loop_workers:
        worker.actor.names.clear()
    agent.generate_sequences(asked)
    return [name for worker in agent.agent_loop_workers for name in worker.actor.names]


def balancer(servers, speculative):
    engine = {"vllm": {"speculative_config": speculative}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT | {"engine_kwargs": engine}}})
    return AsyncLLMServerManager(config, list(servers))


def test_siblings_share_a_server_and_prompts_spread(servers):
    prompts = [[prompt, 1, 2] for prompt in range(9)]

    async def ask():
        manager = balancer(servers, '{"method": "sam"}')  # options may be JSON
        turns = [(f"{i}-{sibling}", prompt) for i, prompt in enumerate(prompts) for sibling in range(SIBLINGS)]
        await asyncio.gather(*[manager.generate(r, prompt_ids=prompt, sampling_params={}) for r, prompt in turns])
        await manager.generate("0-0", prompt_ids=[*prompts[0], 3], sampling_params={})  # a second turn
        assert set(manager.in_flight.values()) == {0} and len(manager.in_flight) == 3

    asyncio.run(ask())
    seen = [Counter(server.actor.prompts) for server in servers]
    later = [server for server in seen if server.pop((0, 1, 2, 3), 0)]
    assert [set(server.values()) for server in seen] == 3 * [{SIBLINGS}]
    assert [len(server) for server in seen] == [3, 3, 3]
    assert [(0, 1, 2) in server for server in later] == [True]


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}], ids=str)
def test_other_methods_are_balanced_as_released(servers, speculative):
    manager = balancer(servers, speculative)
    chosen = [manager._choose_server(f"request {i}", [1, 2, 3]) for i in range(9)]
    assert set(Counter(map(id, chosen)).values()) == {3}
    assert [manager._choose_server(f"request {i}", [4]) for i in range(9)] == chosen


def test_each_request_has_its_seed(manager):
    agent = manager()
    done = agent.generate_sequences(batch())
    rows = range(PROMPTS * SIBLINGS)
    assert done.non_tensor_batch["asked"].tolist() == [request_seed(7, 0, *divmod(row, SIBLINGS)) for row in rows]
    checked = agent.generate_sequences(batch(validate=True))
    assert checked.non_tensor_batch["asked"].tolist() == [request_seed(7, 1, -1 - row, 0) for row in rows]
    folder = {"vllm": {"speculative_config": {"method": "sam", "sam": {"history": "/runs/seeded"}}}}
    for engine in ({}, folder):
        plain = manager(engine_kwargs=engine).generate_sequences(batch())
        assert set(plain.non_tensor_batch["asked"]) == {None}


def test_validations_have_the_same_seeds(manager):
    agent = manager(val_kwargs=ROLLOUT["val_kwargs"] | {"n": 2, "seed": 5})
    for done in (0, PROMPTS, 0):
        checked = agent.generate_sequences(batch(validate=True, validated_rows=done))
        rows = range(done, done + PROMPTS * SIBLINGS)
        expected = [request_seed(7, 5, -1 - prompt, i) for prompt, i in (divmod(row, 2) for row in rows)]
        assert checked.non_tensor_batch["asked"].tolist() == expected
    agent.config.actor_rollout_ref.rollout.engine_kwargs = {}
    agent.config.reward_model = {"enable": False}
    refused = type("Manager", (AgentLoopManager,), {"rollout_replica_class": None})
    with pytest.raises(ValueError, match="val_kwargs.seed is 5, and the engine does not sample by seed"):
        refused(agent.config)


def test_each_request_names_its_group(manager):
    """The siblings of a prompt share a name, also in a later rollout; validation has others, and no sam none."""
    prompts = [[{"content": str(row // SIBLINGS)}] for row in range(PROMPTS * SIBLINGS)]
    agent = manager()
    first = names(agent, raw_prompt=prompts)
    assert None not in first and list(Counter(first).values()) == PROMPTS * [SIBLINGS]
    assert names(agent, raw_prompt=prompts) == first
    assert not {*names(agent, raw_prompt=prompts, validate=True)} & {*first}
    assert set(names(manager(engine_kwargs={}), raw_prompt=prompts)) == {None}


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
