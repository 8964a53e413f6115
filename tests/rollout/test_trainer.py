# SPDX-License-Identifier: Apache-2.0
"""What the trainers of verl and of its recipe/dapo log of their rollouts."""

import json

import torch
from sam_core.engines.verl.rollout_log import rollout_meta
from sam_core.engines.vllm.step_log import SUMS
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils.tracking import FileLogger

TENSORS = (
    "token_level_scores",
    "token_level_rewards",
    "advantages",
    "returns",
    "responses",
    "response_mask",
    "prompts",
)


def rollout(rank, number):
    """What a rank's workers give the trainer."""
    drafter = {"sam_steps": 10, "sam_proposed": 50, "sam_bytes_used": 1000 * number + rank}
    taken = dict.fromkeys(SUMS, 0) | {"drafted": 40 + rank, "accepted": 10, "busy_s": 2.0 + rank} | drafter
    tensors = {name: torch.ones(2, 3) for name in TENSORS} | {"attention_mask": torch.ones(2, 6)}
    return DataProto.from_dict(tensors, meta_info=rollout_meta(rank, number, taken))


def test_step_log_counts_every_round():
    """Of dynamic sampling: recipe/dapo joins the ranks' rows, picks some, and joins the rounds that a batch is made
    of."""
    rounds = [DataProto.concat([rollout(rank, number) for rank in (0, 1)]) for number in (1, 2)]
    log = compute_data_metrics(DataProto.concat([rows[[0, 3]] for rows in rounds]), use_critic=False)
    assert log["rollout/spec/drafted"] == 2 * (40 + 41)
    assert log["rollout/spec/accepted"] == 40
    assert log["rollout/spec/proposed"] == 200
    assert log["rollout/spec/busy_s"] == 6  # the slower rank's
    assert log["rollout/spec/index_bytes"] == 2001


def test_file_logger_adds_each_step_at_once(tmp_path, monkeypatch):
    """A run that is killed leaves the steps it has logged, and one that resumes does not wipe them."""
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    killed, resumed = (FileLogger("project", "run") for _ in range(2))
    killed.log({"x": 1.5}, 1)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1]
    resumed.log({"x": 1.5}, 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
