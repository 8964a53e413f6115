# SPDX-License-Identifier: Apache-2.0
"""Integration with vLLM and vllm-ascend: drafters, configuration, sampling, routing, metrics, the step log.

`plugin` serves vLLM's second model runner without patches. For the first runner, patches call `make_proposer`, which
builds everything that differs by engine, and the methods of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sam_core.engines.vllm.runner1 import RunnerProposer


def make_proposer(vllm_config: Any, runner: Any) -> RunnerProposer:
    """The drafter of vLLM's first runner, which drafts on the host: see RunnerProposer."""
    from sam_core.engines.vllm.runner1 import RunnerProposer

    return RunnerProposer(vllm_config, runner)
