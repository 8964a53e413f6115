# SPDX-License-Identifier: Apache-2.0
"""Metrics that the trainers of verl and of its recipe/dapo log of their rollouts."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from sam_core.engines.verl.rollout_log import rollout_meta
from sam_core.engines.vllm.step_log import SUMS
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.tracking import FileLogger

TENSORS = "token_level_scores token_level_rewards advantages returns responses response_mask prompts"


def rollout(rank, number):
    """Return the batch that a rank's workers give the trainer."""
    drafter = {"sam_steps": 10, "sam_proposed": 50, "sam_bytes_used": 1000 * number + rank}
    taken = dict.fromkeys(SUMS, 0) | {"drafted": 40 + rank, "accepted": 10, "busy_s": 2.0 + rank} | drafter
    tensors = {name: torch.ones(2, 3) for name in TENSORS.split()} | {"attention_mask": torch.ones(2, 6)}
    return DataProto.from_dict(tensors, meta_info=rollout_meta(rank, number, taken))


def test_step_log_counts_every_round():
    """In dynamic sampling, recipe/dapo joins the ranks' rows, keeps some of them, and joins the rounds of a batch."""
    rounds = [DataProto.concat([rollout(rank, number) for rank in (0, 1)]) for number in (1, 2)]
    log = compute_data_metrics(DataProto.concat([rows[[0, 3]] for rows in rounds]), use_critic=False)
    expected = {"drafted": 2 * (40 + 41), "accepted": 40, "proposed": 200, "index_bytes": 2001}
    expected["busy_s"] = 6  # the slower rank's
    assert {name: log[f"rollout/spec/{name}"] for name in expected} == expected


def test_file_logger_adds_each_step_at_once(tmp_path, monkeypatch):
    """A run that is killed leaves the steps it has logged, and one that resumes does not wipe them."""
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    loggers = [FileLogger("project", "run") for _ in range(2)]
    for step, logger in enumerate(loggers, 1):
        logger.log({"x": 1.5}, step)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [*range(1, step + 1)]


def test_validation_places_its_prompts_and_compares_its_answers():
    """A validation has two batches, padded for two ranks, and the workers get the row at which each batch begins. The
    third validation differs from the second in one answer."""
    texts, asked = ["a", "b", "c"] * 2, []

    def generate(batch):
        first = batch.meta_info["validated_rows"]
        asked.append((first, len(batch)))
        ids = [[ord(texts[(first + i) % 6])] for i in range(len(batch))]
        return DataProto.from_dict({"responses": torch.tensor(ids)})

    def score(batch, return_dict):
        return {"reward_tensor": torch.ones(len(batch), 1)}

    trainer = object.__new__(RayPPOTrainer)
    settings = {"trainer": {"log_val_generations": 0}, "reward_model": {"enable": False}}
    settings |= {"actor_rollout_ref": {"rollout": {"val_kwargs": {"n": 1, "do_sample": True, "seed": 0}}}}
    trainer.config = OmegaConf.create(settings)
    inputs = ("input_ids", "attention_mask", "position_ids")
    trainer.val_dataloader = [dict.fromkeys(inputs, torch.zeros(rows, 2)) for rows in (3, 3)]
    trainer.tokenizer = SimpleNamespace(decode=lambda ids, **kwargs: chr(int(ids[0])), eos_token_id=0, pad_token_id=0)
    trainer.global_steps, trainer.async_rollout_mode, trainer.val_reward_fn = 1, False, score
    trainer.actor_rollout_wg = SimpleNamespace(world_size=2, generate_sequences=generate)
    assert "val/unchanged" not in trainer._validate()
    assert asked == [(0, 4), (3, 4)]
    assert trainer._validate()["val/unchanged"] == 1
    texts[4] = "d"
    assert trainer._validate()["val/unchanged"] == 5 / 6
    trainer.config.actor_rollout_ref.rollout.val_kwargs.seed = None
    assert "val/unchanged" not in trainer._validate()


def test_ranks_that_round_a_timing_differently_are_joined():
    """Ranks may round the mean of an all-reduce differently; other values must be equal on all ranks."""

    def part(**meta_info):
        return DataProto(non_tensor_batch={"uid": np.array(["a"], dtype=object)}, meta_info=meta_info)

    timings = [{"generate_sequences": seconds} for seconds in (731.5, np.nextafter(731.5, 0).item())]
    whole = DataProto.concat([part(timing=timing, eos=1) for timing in timings])
    assert (len(whole), whole.meta_info) == (2, {"timing": timings[0], "eos": 1})
    with pytest.raises(AssertionError, match="Conflicting values for meta_info key 'eos'"):
        DataProto.concat([part(eos=1), part(eos=2)])
