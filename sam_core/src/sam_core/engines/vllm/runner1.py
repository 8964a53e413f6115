# SPDX-License-Identifier: Apache-2.0
"""The drafter for the first model runner of vLLM (vllm/v1/worker/gpu_model_runner.py) and that of vllm-ascend."""

from __future__ import annotations

from typing import Any

from sam_core.engines.vllm.answers import certain_lengths
from sam_core.engines.vllm.config import graph_sizes, proposer_settings
from sam_core.engines.vllm.exclusion import exclusion_reason
from sam_core.engines.vllm.groups import request_group, request_salt
from sam_core.engines.vllm.runner1_async import AsyncDrafts
from sam_core.engines.vllm.sampling import renew_noise
from sam_core.proposer import SamProposer


class RunnerProposer(SamProposer):
    """A SamProposer for the requests in a runner's batch.

    Only the first rank of a tensor-parallel group drafts. Its drafts reach the scheduler or, with executor
    `external_launcher`, the schedulers of all ranks.

    Args:
        vllm_config: the engine's VllmConfig, with method sam.
        runner: the GPUModelRunner or NPUModelRunner; its batch and requests are read in each step.

    Attributes:
        async_drafts: drafts at the beginning of a step; None unless the engine schedules asynchronously.
    """

    name = "sam"
    """vllm-ascend 0.11 compares the names of drafters."""

    def __init__(self, vllm_config: Any, runner: Any) -> None:
        from vllm.distributed.parallel_state import get_tp_group
        from vllm.v1.sample.rejection_sampler import RejectionSampler

        speculative, tp_group = vllm_config.speculative_config, get_tp_group()
        settings: dict[str, Any] = proposer_settings(vllm_config, tp_group)
        if not hasattr(RejectionSampler, "apply_logits_processors"):  # vLLM 0.11
            settings["exclusion_reason"] = lambda req_id: exclusion_reason(runner.requests[req_id].sampling_params)
        super().__init__(
            speculative.num_speculative_tokens,
            speculative.sam,
            max_model_len=vllm_config.model_config.max_model_len,
            graph_sizes=graph_sizes(vllm_config),
            group_of=lambda req_id: request_group(runner.requests[req_id]).key,
            is_isolated=lambda req_id: request_salt(runner.requests[req_id]) is not None,
            renew_noise=lambda: renew_noise(tp_group),
            **settings,
        )
        self.runner, self.tp_group = runner, tp_group
        is_async = vllm_config.scheduler_config.async_scheduling
        self.async_drafts = AsyncDrafts(runner, tp_group) if is_async else None
        self._each_rank_schedules = vllm_config.parallel_config.distributed_executor_backend == "external_launcher"

    def propose_for_batch(self, sampled_token_ids: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Draft for the next step after a synchronous step: one list for each row of the batch.

        Args:
            sampled_token_ids: the tokens that the step sampled for each row; empty for a partial prefill.
            num_tokens: all tokens that the step computed.
        """
        batch, states = self.runner.input_batch, self.runner.requests
        lengths = certain_lengths(batch, states, sampled_token_ids, self.max_model_len)
        drafts = self.propose(
            batch.req_ids, batch.token_ids_cpu, lengths, batch.num_prompt_tokens, sampled_token_ids, num_tokens
        )
        if self._each_rank_schedules and self.switch.may_be_on(len(drafts)):
            drafts = self.tp_group.broadcast_object(drafts)
        return drafts

    def dummy_run(self, *args: Any, **kwargs: Any) -> None:
        """vllm-ascend calls this on every drafter to warm it up; there is no model to run."""
