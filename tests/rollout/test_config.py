# SPDX-License-Identifier: Apache-2.0
"""Settings of a rollout that would have no effect are refused when they are read."""

import pytest
from verl.workers.config import RolloutConfig


@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 2, 2)], ids=str)
def test_expert_parallelism_that_does_nothing_is_refused(sizes):
    names = ("data_parallel_size", "tensor_model_parallel_size", "expert_parallel_size")
    settings = dict(zip(names, sizes, strict=True))
    sentence = f"rollout.data_parallel_size={sizes[0]} .*spread no experts in rollout.mode=sync.* give the engine its"
    with pytest.raises(ValueError, match=sentence):
        RolloutConfig(name="vllm", mode="sync", **settings)
    RolloutConfig(name="vllm", mode="async", **settings)
