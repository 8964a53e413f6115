# SPDX-License-Identifier: Apache-2.0
"""Rebinds methods in all processes of an engine.

They choose the model runner, handle seeds and salts of requests and the ends of a session's turns, send counters to the
front end, and limit the number of planned draft tokens.

A worker adds the drafter's report, and whether it pauses, to a step's ModelRunnerOutput, which is pickled with all
attributes. Only SchedulerStats travels from the engine core to the front end; its field `kv_connector_stats` accepts
any dict, so the report travels there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sam_core.engines.hooks import rebind, rebound
from sam_core.engines.vllm.config import has_sam, ignore_seed
from sam_core.engines.vllm.groups import pass_salt

CARRIER = "ngram_gpu"
"""vLLM's method whose configuration sam uses: it schedules asynchronously and has no draft model."""
KEY = "sam_core"
"""Key of the drafter's report in SchedulerStats.kv_connector_stats."""


@functools.cache
def install() -> None:
    """Rebind methods of the configuration and the scheduler; engines without sam behave as before."""
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.metrics import stats

    VllmConfig.use_v2_model_runner = property(rebound(VllmConfig.use_v2_model_runner.fget, _use_v2_model_runner))
    rebind(VllmConfig, "_get_v2_model_runner_unsupported_features", _unsupported_features)
    rebind(Scheduler, "add_request", _add_request)
    rebind(Scheduler, "update_from_output", _update_from_output)
    rebind(Scheduler, "make_spec_decoding_stats", _make_spec_decoding_stats)
    rebind(Scheduler, "make_stats", _make_stats)
    rebind(Scheduler, "_handle_stopped_request", _handle_stopped_request)
    rebind(Scheduler, "_update_after_schedule", _update_after_schedule)
    if metrics := getattr(stats, "RequestSpecDecodeMetrics", None):
        rebind(metrics, "observe", _observe)


def _use_v2_model_runner(use: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def use_v2_model_runner(self: Any) -> bool:
        if not has_sam(self):
            return use(self)
        from vllm import envs

        if envs.VLLM_USE_V2_MODEL_RUNNER is False:
            raise ValueError(
                "speculative method 'sam' needs vLLM's second model runner, which VLLM_USE_V2_MODEL_RUNNER=0 switches "
                "off: unset it"
            )
        return True

    return use_v2_model_runner


def _unsupported_features(find: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    def unsupported_features(self: Any) -> list[str]:
        found = find(self)
        if not has_sam(self):
            return found
        return [feature for feature in found if CARRIER not in feature]  # vLLM up to 0.31 names it

    return unsupported_features


def _add_request(add: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def add_request(self: Any, request: Any) -> None:
        if has_sam(self.vllm_config) and request.sampling_params is not None:
            ignore_seed(self.vllm_config.speculative_config.sam, request.sampling_params)  # the engine's own copy
            pass_salt(request)
        add(self, request)

    return add_request


def _update_from_output(update: Callable[..., Any]) -> Callable[..., Any]:
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.sam_verified = getattr(model_runner_output, "sam_verified", None)
        if report := getattr(model_runner_output, "sam_report", None):
            self.sam_report = report
        self.sam_pauses = getattr(model_runner_output, "sam_pauses", False)
        self.sam_wants_all_passes = getattr(model_runner_output, "sam_wants_all_passes", True)
        return update(self, scheduler_output, model_runner_output)

    return update_from_output


def _make_spec_decoding_stats(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_spec_decoding_stats(
        self: Any,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: Any,
        request_id: str,
    ) -> Any:
        if (verified := getattr(self, "sam_verified", None)) is not None:  # instead of the planned number
            num_draft_tokens, num_invalid_spec_tokens = verified.get(request_id, 0), None
            if (metrics := getattr(self.requests[request_id], "spec_decode_metrics", None)) is not None:
                metrics.sam_verified = num_draft_tokens
        return (
            make(self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id)
            or spec_decoding_stats
        )

    return make_spec_decoding_stats


def _observe(observe: Callable[..., None]) -> Callable[..., None]:
    def observe_verified(self: Any, num_draft_tokens: int, num_accepted: int, detailed: bool = False) -> None:
        verified = vars(self).pop("sam_verified", None)
        if verified != 0:  # as in the totals, a step that verified nothing had no draft
            observe(self, num_draft_tokens if verified is None else verified, num_accepted, detailed)

    return observe_verified


def _make_stats(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_stats(self: Any, *args: Any, **kwargs: Any) -> Any:
        stats = make(self, *args, **kwargs)
        if stats is not None and (report := getattr(self, "sam_report", None)):
            stats.kv_connector_stats = {**(stats.kv_connector_stats or {}), KEY: report}
            self.sam_report = None
        return stats

    return make_stats


def take_report(scheduler_stats: Any) -> dict[str, float] | None:
    """Remove the drafter's report from a SchedulerStats and return it; None if there is none."""
    if scheduler_stats is None or not (stats := scheduler_stats.kv_connector_stats) or KEY not in stats:
        return None
    report: dict[str, float] = stats.pop(KEY)
    scheduler_stats.kv_connector_stats = stats or None
    return report


def _handle_stopped_request(handle: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def handle_stopped_request(self: Any, request: Any) -> bool:
        # Drafts after the end of a session's turn may have been accepted; the next turn begins where this one ended.
        # vLLM does the rest itself from 0.31 on: it drops what steps in flight sample for the turn.
        if request.resumable and has_sam(self.vllm_config):
            computed = request.num_computed_tokens - request.num_output_placeholders
            request.num_computed_tokens = min(computed, request.num_tokens - 1)
            request.num_output_placeholders, request.spec_token_ids = 0, []
            request.drop_stale_output, request.num_stale_output_tokens = True, request.num_in_flight_tokens
        return handle(self, request)

    return handle_stopped_request


def _update_after_schedule(update: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def update_after_schedule(self: Any, scheduler_output: Any) -> None:
        """Limit the planned draft tokens so that all requests fit into the step, with adaptive verification.

        vLLM plans the longest draft for each request, however few tokens are verified, and leaves out requests that
        would exceed max_num_batched_tokens. While the drafter pauses, no drafts are planned, and the step equals one
        without speculation.
        """
        if has_sam(self.vllm_config) and self.vllm_config.speculative_config.enable_adaptive_verification:
            share = self.max_num_scheduled_tokens // max(len(self.running), 1)
            most = 0 if getattr(self, "sam_pauses", False) else self.num_spec_tokens
            scheduler_output.num_spec_tokens_to_schedule = max(min(most, share - 1), 0)
        scheduler_output.sam_wants_all_passes = getattr(self, "sam_wants_all_passes", True)
        update(self, scheduler_output)

    return update_after_schedule
