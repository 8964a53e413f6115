# SPDX-License-Identifier: Apache-2.0
"""For vLLM and vllm-ascend: drafters of both model runners, configuration, sampling, routing, metrics, the step log.

An engine comes in by one of two functions, which build everything that differs by engine: `make_proposer` for the first
runner, `make_speculator` for the second. Patches call these and the methods of what they return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from sam_core.engines.vllm.runner1 import RunnerProposer
    from sam_core.engines.vllm.runner2 import Speculator


def make_proposer(vllm_config: Any, runner: Any) -> RunnerProposer:
    """The drafter of vLLM's first runner, which drafts on the host: see RunnerProposer."""
    from sam_core.engines.vllm.runner1 import RunnerProposer

    return RunnerProposer(vllm_config, runner)


def make_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Speculator:
    """The drafter of vLLM's second runner, whose drafts stay on the device: see runner2.make_speculator."""
    from sam_core.engines.vllm import runner2

    return runner2.make_speculator(vllm_config, device, req_states)
