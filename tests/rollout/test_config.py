# SPDX-License-Identifier: Apache-2.0
"""Settings of a rollout that would not do what they say are refused when they are read."""

import pytest
from verl.workers.config import RolloutConfig


@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 2, 2), (1, 2, 1)], ids=str)
def test_expert_parallelism_that_does_nothing_is_refused(sizes):
    settings = dict(
        zip(("data_parallel_size", "tensor_model_parallel_size", "expert_parallel_size"), sizes, strict=True)
    )
    asked_for = sizes[0] > 1 or sizes[2] > 1
    if asked_for:
        with pytest.raises(
            ValueError, match="spread no experts in rollout.mode=sync.* give the engine its sizes"
        ) as error:
            RolloutConfig(name="vllm", mode="sync", **settings)
        assert f"rollout.data_parallel_size={sizes[0]} " in str(error.value)
    else:
        RolloutConfig(name="vllm", mode="sync", **settings)
    RolloutConfig(name="vllm", mode="async", **settings)
