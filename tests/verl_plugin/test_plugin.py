# SPDX-License-Identifier: Apache-2.0
"""The plugin on verl's own classes, without Ray: the functions that it rebinds, and their effects."""

import asyncio
import importlib
import itertools
import json
import logging
import os
import sys
import types
from concurrent.futures import Future
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import INSTALLED, RAN, configuration
from omegaconf import OmegaConf
from sam_core.engines.verl import hooks, plugin
from sam_core.engines.verl.plugin import Rebinding, module_name, trainers
from sam_core.engines.verl.router import PromptRouter
from sam_core.engines.vllm import config as vllm_config
from sam_core.engines.vllm.plugin import front
from sam_core.seeds import request_seed

SAM = {"speculative_config": {"method": "sam"}}
SEEDED = {"speculative_config": {"method": "sam", "sam": {"verify": "seeded"}}}
COMPARED = {"additional_config": {"sam_verify": "seeded"}}
CALLS = itertools.count()
OTHER = {"speculative_config": {"method": "ngram"}}


def rebound_functions():
    """Yield (file, class or "", name) of each function of verl that sam_core has rebound."""
    for file in plugin.MODULES:
        module = importlib.import_module(module_name(file))
        values = [getattr(each, "__ray_metadata__", None) for each in vars(module).values()]
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        classes += [each.modified_class for each in values if each]
        for value in [value for holder in (module, *classes) for value in vars(holder).values()]:
            if not isinstance(value, types.FunctionType) or not hasattr(value, "__wrapped__"):
                continue
            if value.__module__.startswith("verl.") and value.__globals__["__name__"].startswith("sam_core."):
                owner, _, name = value.__qualname__.rpartition(".")
                yield sys.modules[value.__module__].__file__, owner, name


def test_every_rebound_function_is_in_hooks_txt():
    found = {(os.path.relpath(file, INSTALLED), *names) for file, *names in rebound_functions()}
    wanted = {(hook.file, hook.owner, hook.name) for hook in hooks.HOOKS if hook.why}
    assert wanted - found == {(hooks.AGENTS, "AgentLoopManager", "generate_sequences")}, "verl's decorator is around it"
    assert found <= wanted


# ---------------------------------------------------------------- groups, seeds and answers


def ask(manager, prompts, step, answers=3, pad=0, **more):
    """Return (sampling parameters, row) of each request for a batch. The trainers of verl.experimental give the manager
    a row for each answer.
    """
    from verl.protocol import DataProto
    from verl.utils import tensordict_utils as tu

    v1 = type(manager).__name__ == "AgentLoopManagerTQ"
    rows, call = [i for i in prompts for _ in range(1 if v1 else answers)], next(CALLS)
    columns = {"uid": [f"{call} {i}" for i in rows], "raw_prompt": [[{"content": str(i)}] for i in rows], "index": rows}
    RAN.clear()
    if v1:
        batch = tu.get_tensordict(columns)
        for name, value in {"global_steps": step, **more}.items():
            tu.assign_non_tensor_data(batch, name, value)
    else:
        arrays = {name: np.empty(len(rows), dtype=object) for name in columns}
        for name, values in columns.items():
            arrays[name][:] = values
        batch = DataProto(non_tensor_batch=arrays, meta_info={"global_steps": step, **more})
        batch = DataProto.concat([batch, batch[:pad]]) if pad else batch
    manager.generate_sequences(batch)
    return [*RAN]


BATCHES = ((1, range(4), 3), (1, (4, 5), 3), (1, (-1, -2), 1), (1, (6, 7), 3), (2, range(4), 3))
"""Step, prompts' numbers, answers per prompt: a step, its refill, a validation, which does not advance the numbers,
further prompts, and the next step."""


def seeds(step, prompts, answers):
    return [request_seed(7, step, p, s) for p in prompts for s in range(answers)]


def given(requests):
    return [params.get("seed") for params, _ in requests]


@pytest.mark.parametrize("v1", [True, False])
def test_each_request_has_its_seed(make_manager, v1):
    """tests/rollout/test_agent_loop.py tests the seeds of a patched verl."""
    as_text = {"speculative_config": json.dumps(SEEDED["speculative_config"])}
    for engine_kwargs in (SEEDED, COMPARED, as_text):
        manager = make_manager(engine_kwargs, v1)
        for step, prompts, answers in BATCHES:
            asked = ask(manager, prompts, step, answers, **({"validate": True} if answers == 1 else {}))
            assert given(asked) == seeds(step, prompts, answers)
            assert all("sam_place" not in row for _, row in asked)
    for other in ({}, OTHER, SAM):
        assert {*given(ask(make_manager(other, v1), range(4), 1))} == {None}


@pytest.mark.parametrize("v1", [True, False])
def test_validations_with_one_seed_have_the_same_seeds(make_manager, v1):
    manager = make_manager(SEEDED, v1, val_kwargs={"n": 2, "seed": 11})
    trainer = type("Trainer", (), {"_maybe_log_val_generations": None})()
    trainer.agent_loop_manager, trainer.config = manager, configuration({})
    expected = [seeds(11, (-1, -2, -3), 2), seeds(11, (-4, -5), 2)]

    def validate(self):
        first = ask(manager, (0, 1, 2), 5, 2, validate=True, **({} if v1 else {"pad": 2}))
        return [given(first)[:6], given(ask(manager, (3, 4), 5, 2, validate=True))]

    validate = trainers._validate(validate)
    trainer.llm_server_manager = SimpleNamespace(rollout_replicas=[])
    assert validate(trainer) == expected
    ask(manager, range(4), 1)
    assert validate(trainer) == expected


def test_a_validation_seed_needs_an_engine_that_samples_by_seed(make_manager):
    with pytest.raises(ValueError, match=r"val_kwargs.seed is 11, but the engine does not sample by seed"):
        ask(make_manager(SAM, val_kwargs={"n": 1, "seed": 11}), range(2), 1)


def test_verls_configuration_takes_a_seed_of_validation():
    from verl.utils.config import omega_conf_to_dataclass

    block = OmegaConf.create({"_target_": "verl.workers.config.SamplingConfig", "n": 4, "seed": 11})
    assert omega_conf_to_dataclass(block).seed == 11
    assert omega_conf_to_dataclass(OmegaConf.create({"_target_": block["_target_"]})).get("seed") is None


@pytest.mark.parametrize("v1", [True, False])
def test_each_request_names_its_group(make_manager, v1):
    """A prompt's siblings share a name in all steps; validation has other names, and without SAM there are none."""

    def names(manager, **more):
        asked = ask(manager, range(4), **more)
        return [params.get("extra_args", {}).get("sam_group") for params, _ in asked]

    by_flag = {"spec_method": "sam"}
    first = names(make_manager(SAM, v1), step=1)
    assert None not in first and len(first) == 12 and len({*first}) == 4
    assert names(make_manager(by_flag, v1), step=2) == first
    assert not {*names(make_manager(SAM, v1), step=1, answers=1, validate=True)} & {*first}
    for other in ({}, OTHER, COMPARED):
        assert {*names(make_manager(other, v1), step=1)} == {None}
    assert {*names(make_manager(SAM, v1, name="sglang"), step=1)} == {None}


@pytest.mark.parametrize("v1", [True, False])
def test_answers_are_logged_where_they_have_a_place(make_manager, v1, tmp_path, monkeypatch):
    monkeypatch.setenv("SAM_STEP_LOG", str(tmp_path))
    monkeypatch.setenv("SAM_ANSWER_LOG", "1")
    for engine_kwargs, step in ((SEEDED, 1), (COMPARED, 2), (SAM, 3)):
        manager = make_manager(engine_kwargs, v1)
        ask(manager, range(2), step)
        ask(manager, range(2), step, 1, validate=True)
    (log,) = tmp_path.glob("answers-*.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(row[:3] for row in rows) == [[step, p, s] for step in (1, 2) for p in range(2) for s in range(3)]
    assert all(row[4:] == [[3], [-0.5]] for row in rows)


# ---------------------------------------------------------------- the step log


class Replica:
    """An engine that has made `steps` steps since its counters were last read."""

    def __init__(self, rank, steps=0):
        self.replica_rank, self.steps, self.asked = rank, steps, []
        self.servers = [SimpleNamespace(spec_stats=SimpleNamespace(remote=self.take))]

    def take(self, write):
        self.asked.append(write)
        taken, self.steps = self.steps, 0
        result = {"decode_steps": taken, "busy_s": taken / 2, "sam_bytes_used": 10 + taken, "sam_steps": taken}
        return result | {"tokens": taken, "drafted": taken}


def awaitable(replica):
    async def answer(taken):
        return taken

    return lambda write: answer(replica.take(write))


@pytest.fixture
def replicas(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "get", lambda references: references)
    return [Replica(0), Replica(1)]


def trainer_v1(replicas, engine_kwargs, validation=lambda: ()):
    """Return the part of verl's V1 trainer that validates and ends steps."""
    from verl.trainer.ppo.v1 import trainer_base

    class Trainer(trainer_base.PPOTrainer):
        def __init__(self):
            self.config = configuration(engine_kwargs)
            self.config.trainer = {"log_val_generations": 0}
            self.llm_server_manager = SimpleNamespace(rollout_replicas=replicas)
            self._pending_sync_metrics = {"own": 1}
            self.trainer_mode = "sync"

        @property
        def val_dataloader(self):
            return validation()

        def _val_metrics_update(self, *args, **kwargs):
            return {"validated": 1}

    Trainer.__abstractmethods__ = frozenset()
    return Trainer()


def test_step_log_has_what_the_engines_did(replicas):
    trainer = trainer_v1(replicas, SAM)
    for replica in replicas:
        replica.steps = 3 + replica.replica_rank
    metrics = trainer._consume_sync_metrics()
    assert metrics["own"] == 1 and metrics["rollout/spec/decode_steps"] == 7
    assert metrics["rollout/spec/busy_s"] == 2 and metrics["rollout/spec/index_bytes"] == 14
    assert trainer._consume_sync_metrics()["rollout/spec/decode_steps"] == 0
    compared, plain = trainer_v1(replicas, COMPARED), trainer_v1([], {})
    assert "rollout/spec/tokens" in compared._consume_sync_metrics() and plain._consume_sync_metrics() == {"own": 1}


def test_validation_is_not_counted(replicas):
    """Engine steps before and after a validation count; seconds are added up, the index's size is the last one."""

    def validation():
        replicas[0].steps = 100
        return ()

    trainer = trainer_v1(replicas[:1], SAM, validation)
    replicas[0].steps = 3
    assert trainer._validate() == {"validated": 1}
    replicas[0].steps = 4
    metrics = trainer._consume_sync_metrics()
    assert metrics["rollout/spec/decode_steps"] == 7 and metrics["rollout/spec/busy_s"] == 3.5
    assert metrics["rollout/spec/index_bytes"] == 14
    assert replicas[0].asked == [True, False, True], "rows of a validation are not written"


def test_an_asynchronous_trainer_counts_what_it_generates_while_it_validates(replicas):
    trainer = trainer_v1(replicas[:1], SAM)
    trainer.trainer_mode = "separate_async"
    replicas[0].steps = 3
    trainer._validate()
    assert replicas[0].asked == []
    assert trainer._consume_sync_metrics()["rollout/spec/decode_steps"] == 3


def test_validations_with_one_seed_are_compared(replicas, monkeypatch):
    """The order of the answers to a prompt does not matter."""
    trainer = trainer_v1(replicas, SEEDED)
    answers = [[("p", "a"), ("p", "b"), ("q", "a"), ("p", "a")], [("p", "b"), ("p", "a"), ("q", "b"), ("p", "a")]]
    logged = []

    def validate(self):
        inputs, outputs = zip(*answers[len(logged) % 2], strict=True)
        self._maybe_log_val_generations(inputs=inputs, outputs=outputs, scores=[0] * 4)
        return {"validated": 1}

    monkeypatch.setattr(type(trainer), "_validate", trainers._validate(validate))
    monkeypatch.setattr(type(trainer), "_maybe_log_val_generations", lambda self, **given: logged.append(given))
    assert trainer._validate() == {"validated": 1}
    trainer.config.actor_rollout_ref.rollout.val_kwargs.seed = 3
    assert [trainer._validate().get("val/unchanged") for _ in range(3)] == [None, 0.75, 0.75]
    assert len(logged) == 4 and "_maybe_log_val_generations" not in vars(trainer)


def test_one_step_off_counts_what_a_batch_took(replicas):
    from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

    class Trainer(OneStepOffRayTrainer):
        def __init__(self):
            self.config, self.metrics, self.timing_raw = configuration(SAM), {}, {}
            self.llm_server_manager = SimpleNamespace(rollout_replicas=replicas)
            self.is_last_step = True

        def _fit_update_weights(self): ...

    async def generated():
        replicas[0].steps = 5
        return {"own": 1}, {}, 0, SimpleNamespace(meta_info={"timing": {}}), None

    async def fit(trainer):
        return await trainer._fit_generate(asyncio.create_task(generated()), None)

    for replica in replicas:
        replica.servers[0].spec_stats.remote = awaitable(replica)
    trainer = Trainer()
    asyncio.run(fit(trainer))
    assert trainer.metrics["own"] == 1 and trainer.metrics["rollout/spec/decode_steps"] == 5


def test_fully_async_counts_what_ran_between_updates(replicas):
    """The replicas on the trainer's devices count too."""
    from verl.experimental.fully_async_policy import fully_async_rollouter as module

    class Rollouter(module.FullyAsyncRollouter.__ray_metadata__.modified_class):
        def __init__(self):
            self.config, self.lock, self.active_tasks = configuration(SAM), asyncio.Lock(), set()
            self.llm_server_manager = SimpleNamespace(rollout_replicas=replicas[:1], hybrid_replicas={"a": replicas[1]})
            self._resume_event, self.idle_start_time, self.step_start_time = asyncio.Event(), 0.0, 1.0
            self.message_queue_client = SimpleNamespace(get_queue_size=self.size)
            self._step_generated_samples, self._step_samples_history, self._active_count_history = 0, [], []
            self.max_concurrent_samples = self._STEP_HISTORY_SIZE = 1

        async def size(self):
            return 0

    async def reset():
        return await Rollouter().reset_staleness()

    for replica in replicas:
        replica.servers[0].spec_stats.remote = awaitable(replica)
        replica.steps = 2
    timing = asyncio.run(reset())
    assert "fully_async/rollouter/idle_ratio" in timing and timing["rollout/spec/decode_steps"] == 4


def test_fully_async_numbers_prompts_on(make_manager):
    """A sample holds the rows of one prompt. Samples go to the workers in turn and are numbered consecutively."""
    from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncAgentLoopManager
    from verl.protocol import DataProto

    manager, sent = make_manager(SEEDED, v1=False), []
    manager.__class__ = FullyAsyncAgentLoopManager
    done = Future()
    done.set_result(None)
    for worker in manager.agent_loop_workers:
        worker.generate_sequences.remote = lambda batch: sent.append(batch) or SimpleNamespace(future=lambda: done)
    for i in range(3):
        sample = DataProto(non_tensor_batch={"uid": np.array([f"u{i}"] * 3, dtype=object)}, meta_info={})
        asyncio.run(FullyAsyncAgentLoopManager.generate_sequences_single(manager, sample))
    places = [row for batch in sent for row in batch.non_tensor_batch["sam_place"]]
    assert places == [(1, p, s) for p in range(3) for s in range(3)]


def test_differences_of_log_probs_are_counted(monkeypatch):
    import torch
    from verl.protocol import DataProto
    from verl.utils.debug.metrics import calculate_debug_metrics

    actor, rollout = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-1.0, -2.05, -9.0]])
    tensors = {"old_log_probs": actor, "rollout_log_probs": rollout, "responses": torch.zeros(1, 3)}
    data = DataProto.from_dict(tensors | {"response_mask": torch.tensor([[1, 1, 0]])})
    monkeypatch.setattr(trainers, "WATCHED", [])
    assert not any(name.startswith("rollout_corr/") for name in calculate_debug_metrics(data))
    trainers.WATCHED.append(None)
    counts = calculate_debug_metrics(data)
    assert counts["rollout_corr/log_prob_diff/0.1/total"] == counts["rollout_corr/log_prob_diff/1e-07/total"] == 1
    assert sum(value for name, value in counts.items() if name.endswith("/total")) == 2
    data.batch["response_mask"] *= 0
    assert calculate_debug_metrics(data)["training/rollout_probs_diff_valid"] == 0


# ---------------------------------------------------------------- the router, the engine


def test_sam_brings_its_router(monkeypatch):
    from verl.workers.rollout import router
    from verl.workers.rollout.llm_server import LLMServerManager

    monkeypatch.setattr(router.ray, "remote", lambda kind: SimpleNamespace(remote=kind))

    def chosen(engine_kwargs, named=None, **rollout):
        manager = object.__new__(LLMServerManager)
        manager.server_addresses = manager.server_handles = ["s0", "s1"]
        manager._load_balancer_cls = named
        manager.rollout_config = configuration(engine_kwargs, **rollout).actor_rollout_ref.rollout
        OmegaConf.set_struct(manager.rollout_config, True)
        asyncio.run(manager._init_global_load_balancer())
        return type(manager.global_load_balancer)

    class Own(router.GlobalRequestLoadBalancer): ...

    assert chosen(SAM, router_config_path=None) is PromptRouter
    assert chosen(SAM, Own) is Own
    for other in (chosen({}), chosen(OTHER), chosen(SAM, full_determinism=True), chosen(SAM, name="sglang")):
        assert other is router.GlobalRequestLoadBalancer
    with pytest.raises(FileNotFoundError, match="own.yaml"):
        chosen(SAM, router_config_path="own.yaml")


@pytest.fixture
def server():
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    server = object.__new__(vLLMHttpServer)
    server.replica_rank = 3
    server.config = OmegaConf.create({"mtp": None, "disaggregation": {"enabled": False}})
    return server


def test_each_replica_has_its_own_history(server):
    arguments = {"speculative_config": {"method": "sam", "sam": {"history": "/h"}}}
    server._preprocess_engine_kwargs(arguments)
    assert arguments["speculative_config"]["sam"] == {"history": "/h/replica-3"}
    for other in ({}, dict(OTHER)):
        server._preprocess_engine_kwargs(other)
        assert other in ({}, OTHER)


def test_two_ways_to_speculate_exclude_each_other(server):
    for setting, key in (
        ({"mtp": {"enable": True, "enable_rollout": True}}, "model.mtp.enable_rollout"),
        ({"disaggregation": {"enabled": True}}, "rollout.disaggregation.enabled"),
    ):
        server.config = OmegaConf.create(setting)
        with pytest.raises(ValueError, match=f"{key} and method sam .* keep one"):
            server._preprocess_engine_kwargs(dict(SAM))
        server._preprocess_engine_kwargs(dict(OTHER))


def test_mtp_and_sam_draft_together(server):
    from verl.workers.rollout.vllm_rollout.utils import build_mtp_speculative_config

    server.config = OmegaConf.create({"mtp": {"enable": True, "enable_rollout": True}})
    arguments = {"speculative_config": {"sam": {}}}
    server._preprocess_engine_kwargs(arguments)
    made = build_mtp_speculative_config("mtp", 2, arguments["speculative_config"])
    assert made == {"method": "mtp", "num_speculative_tokens": 2, "sam": {}}


class ClientOf032:
    """The pausing method of vLLM's AsyncLLM from 0.32 on."""

    async def pause_generation(self, *, mode="abort", clear_cache=True):
        await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)


@pytest.mark.parametrize("newer", [False, True])
def test_requests_are_interrupted_by_verls_name_of_the_argument(newer):
    from verl.workers.rollout.vllm_rollout import vllm_async_server as module

    if newer:
        module = SimpleNamespace(AsyncLLM=ClientOf032)
        plugin.engine.install_pause(module)
    engine, modes = object.__new__(module.AsyncLLM), []

    async def pause(mode, clear_cache):
        modes.append((mode, clear_cache))

    engine.engine_core = SimpleNamespace(pause_scheduler_async=pause, shutdown=lambda timeout=None: None)
    for arguments in ({"wait_for_inflight_requests": False}, {"wait_for_inflight_requests": True}, {"mode": "keep"}):
        asyncio.run(engine.pause_generation(**arguments, clear_cache=False))
    assert modes == [("abort", False), ("wait", False), ("keep", False)]


def test_an_engine_counts_its_steps_where_it_is_watched(monkeypatch):
    from verl.workers.rollout.vllm_rollout import vllm_async_server as module
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setenv("VERL_REPLICA_RANK", "2")
    made = []
    monkeypatch.setattr(AsyncLLM, "__init__", lambda self, **given: made.append(given["stat_loggers"]))
    monkeypatch.setattr("vllm.v1.engine.async_llm.Executor.get_class", lambda config: None)
    own = object()

    def start(method=None, is_sam=False, additional=None, **given):
        speculative = method and SimpleNamespace(method=method, is_sam=is_sam)
        config = SimpleNamespace(speculative_config=speculative, additional_config=additional)
        engine = module.AsyncLLM.from_vllm_config(vllm_config=config, **given)
        assert made.pop() == ([*given.get("stat_loggers", []), engine.sam_step_log] if engine.sam_step_log else None)
        return engine.sam_step_log

    assert start("ngram_gpu", True).replica == start("sam", stat_loggers=[own]).replica == 2
    assert start(additional={"sam_verify": "rejection"}).replica == 2
    assert start() is start("ngram_gpu") is start(additional={"other": 1}) is None


# ---------------------------------------------------------------- a verl that does not fit


@pytest.fixture
def unfit(tmp_path):
    """An imported module of a verl that lacks a hook, and the Rebinding of this verl."""
    (tmp_path / hooks.METRICS).parent.mkdir(parents=True)
    text = (INSTALLED / hooks.METRICS).read_text().replace("def calculate_debug_metrics", "def calculate_metrics")
    (tmp_path / hooks.METRICS).write_text(text)
    spec = spec_from_file_location(module_name(hooks.METRICS), tmp_path / hooks.METRICS)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, Rebinding(tmp_path)


def test_a_hook_that_does_not_fit_is_said_once(unfit, caplog):
    module, rebinding = unfit
    before = dict(vars(module))
    plugin.complain.cache_clear()
    with caplog.at_level(logging.ERROR, "sam_core.verl"):
        rebinding.imported(module)
        rebinding.imported(module)
    (record,) = caplog.records
    assert f"{hooks.METRICS}: calculate_debug_metrics is missing; runs with" in record.getMessage()
    assert vars(module) == before


def test_an_engine_that_asks_for_sam_is_refused(unfit, monkeypatch):
    _, rebinding = unfit
    monkeypatch.setattr(vllm_config, "TRAINER_CHECKS", [rebinding.refuse])
    with pytest.raises(ValueError, match="'sam' knows verl 0.9.1 and does not fit the installed .* is missing, and"):
        vllm_config.check_speculative_config(None, "")
    asks = SimpleNamespace(speculative_config={"method": "sam"})
    with pytest.raises(ValueError, match="knows verl"):
        front.create_speculative_config(asks, None, None)


def test_a_patched_verl_is_left_alone(monkeypatch):
    before = [*sys.meta_path], [*vllm_config.TRAINER_CHECKS]
    monkeypatch.setattr(hooks, "is_patched", lambda folder: folder == INSTALLED)
    plugin.install()
    assert ([*sys.meta_path], [*vllm_config.TRAINER_CHECKS]) == before
