# SPDX-License-Identifier: Apache-2.0
"""Training runs are repeatable: the timing of answers does not change batches. tests/verl_plugin tests the seeds."""

import asyncio
import contextlib
from types import SimpleNamespace
from unittest import mock

from omegaconf import OmegaConf
from sam_core.engines.verl.plugin import agents


def test_what_a_request_asks_for_stays():
    """Extra arguments and a group that a user's own worker has set in a request are kept."""
    seen = []

    async def run(self, sampling_params, trajectory, **row):
        seen.append(sampling_params["extra_args"])

    rollout = {"name": "vllm", "engine_kwargs": {"vllm": {"speculative_config": {"method": "sam"}}}}
    worker = SimpleNamespace(config=OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}}))
    for given in ({"other": 1}, {"other": 1, "sam_group": "own"}):
        request = agents._run_agent_loop(run)(worker, {"extra_args": given}, {"validate": False}, uid="u")
        asyncio.run(request)
    assert seen == [{"other": 1, "sam_group": "uid u"}, {"other": 1, "sam_group": "own"}]


def test_batch_holds_the_first_prompts_in_the_order_asked(monkeypatch):
    """The ids of the forty prompts are in no order, and the later prompts' answers end first."""
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


def test_next_step_begins_behind_the_last_prompt_taken(make_trainer, monkeypatch):
    """The trainer requests four prompts and two more; the fifth fills the batch, so the next step begins with the
    sixth. The replay buffer has the configured `poll_interval`."""
    asked, uids = [], []

    def generate(batch):
        asked.extend(batch["raw_prompt"])
        uids.extend(batch["uid"])

    class Sampled(Exception): ...

    config = {"data": {"train_batch_size": 4, "gen_batch_size": 1}, "algorithm": {}}
    config["trainer"] = {"v1": {"sampler": {"max_off_policy_threshold": None, "max_off_policy_strategy": "drop"}}}
    config["trainer"]["v1"]["sampler"] |= {"sampler_kwargs": {}, "poll_interval": 0.1}
    trainer = make_trainer(config | {"actor_rollout_ref": {"rollout": {"temperature": 1.0}}}, 20, generate)

    def sample(self, global_steps, partition_id, batch_size):
        keys = [f"{uids[0]}_0_0"]
        if partition_id == "train":
            trainer._add_prompts_to_generate(1)
            trainer._add_prompts_to_generate(1)
            keys = [f"{uids[i]}_0_0" for i in (0, 1, 3, 4)]
        return SimpleNamespace(partition_id=partition_id, keys=keys, extra_info={}), {}

    monkeypatch.setattr("verl.trainer.ppo.v1.replay_buffer.ReplayBuffer.sample", sample)
    trainer.replay_buffer, trainer.on_sample_end = trainer._build_replay_buffer(), mock.Mock(side_effect=Sampled)
    for _ in range(2):
        first = uids.copy()
        uids.clear()
        trainer._add_batch_to_generate()
        trainer.replay_buffer.sample(1, "val", 1)  # a validation returns no prompts
        with contextlib.suppress(Sampled):
            trainer._step_once({}, {}, 4)
        trainer.global_steps += 1
    assert trainer.replay_buffer.poll_interval == 0.1
    assert asked == [f"p{i}" for i in (*range(6), *range(5, 11))]
    assert uids[0] not in first, "asked again under its old id"
    assert [batch["raw_prompt"] for batch in trainer.train_dataloader._returned] == [["p10"]]
