# SPDX-License-Identifier: Apache-2.0
"""The functions of vLLM that method `sam` relies on in the second runner.

Their sources are checked before any is rebound.

`python -m sam_core.engines.vllm.hooks [FOLDER]` checks the installed vLLM, or another copy of its package, and prints
each hook. vLLM is not imported. To support a new release, begin here.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

from sam_core.engines import hooks
from sam_core.engines.hooks import Hook, Older

RELEASES = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""Releases of vLLM in which all hooks fit, ascending."""
WHOLE = "0.31"
"""The newest release that verl 0.9.1 can be installed with."""


RUNNER = "v1/worker/gpu/model_runner.py"
SPECULATOR = "v1/worker/gpu/spec_decode/speculator.py"
VERIFIER = "v1/worker/gpu/spec_decode/rejection_sampler.py"
ADAPTIVE = "v1/worker/gpu/spec_decode/adaptive_verification.py"
SCHEDULER = "v1/core/sched/scheduler.py"
CLIENT = "v1/engine/core_client.py"
CONFIG = "config/vllm.py"

LOGPROBS = Hook(
    VERIFIER,
    "RejectionSampler",
    "_get_logprobs_tensors",
    "self",
    ("if self.enable_adaptive_verification:",),
    "",
    (Older("0.28", "self"),),
)
"""vLLM 0.28 gives no log-probabilities with adaptive verification."""
STATES = Hook(
    "v1/worker/gpu/model_states/mamba_hybrid.py",
    "MambaHybridModelState",
    "prepare_attn",
    "self input_batch",
    ("num_draft_tokens_per_req = np.zeros(input_batch.num_reqs, np.int32)",),
    "",
)
"""Up to 0.31 a step without drafts after accepted ones reads the wrong state of a layer that keeps one."""

HOOKS = (
    # the front end
    Hook(
        "engine/arg_utils.py",
        "EngineArgs",
        "create_speculative_config",
        "self target_model_config target_parallel_config",
        ('("--spec-method", "method", self.spec_method)', "SpeculativeConfig(**self.speculative_config)"),
        "create a SamSpeculativeConfig for method sam",
    ),
    Hook(
        CONFIG,
        "VllmConfig",
        "_maybe_disable_dynamic_sd_for_data_parallel",
        "self",
        ("speculative_config.num_speculative_tokens_per_batch_size = None",),
        "decide whether verification can be adaptive, before graph sizes are chosen",
    ),
    Hook(
        "config/speculative.py",
        "SpeculativeConfig",
        "__post_init__",
        "self",
        ("self.model = 'ngram_gpu'",),
        "",
    ),
    Hook(
        "sampling_params.py",
        "SamplingParams",
        "_validate_spec_decode",
        "self speculative_config",
        (),
        "accept min_p and logit_bias",
    ),
    Hook(
        "v1/engine/input_processor.py",
        "InputProcessor",
        "process_inputs",
        "self request_id prompt params",
        ("resumable=resumable",),
        "refuse sessions on a model whose layers keep a state",
    ),
    Hook(CLIENT, "DPLBAsyncMPClient", "__init__", "self vllm_config", ("self.eng_start_index =",), "route by prompt"),
    Hook(
        CLIENT,
        "DPLBAsyncMPClient",
        "get_core_engine_for_request",
        "self request",
        (
            "(eng_index := request.data_parallel_rank) is None",
            "self.reqs_in_flight[request.request_id] = chosen_engine",
        ),
        "send the answers to a prompt to one engine",
    ),
    Hook(
        CLIENT,
        "DPLBAsyncMPClient",
        "process_engine_outputs",
        "self outputs",
        ("outputs.finished_requests",),
        "see requests end",
    ),
    Hook(
        "v1/metrics/loggers.py",
        "StatLoggerManager",
        "record",
        "self scheduler_stats iteration_stats mm_cache_stats engine_idx",
        ("for stat_logger in self.stat_loggers",),
        "remove the drafter's counters from the statistics",
    ),
    Hook(
        "v1/metrics/loggers.py",
        "PrometheusStatLogger",
        "__init__",
        "self vllm_config engine_indexes",
        ("labelnames = ['model_name', 'engine']", "self.per_engine_labelvalues:"),
        "register vllm:sam_*",
    ),
    # the engine core
    Hook(
        CONFIG,
        "VllmConfig",
        "use_v2_model_runner",
        "self",
        ("use_v2_model_runner = envs.VLLM_USE_V2_MODEL_RUNNER",),
        "use the second runner, which ngram_gpu does not use up to 0.31",
    ),
    Hook(
        CONFIG,
        "VllmConfig",
        "_get_v2_model_runner_unsupported_features",
        "self",
        ("return unsupported",),
        "allow the method in the second runner",
    ),
    Hook(
        SCHEDULER,
        "Scheduler",
        "add_request",
        "self request",
        ("self._enqueue_waiting_request(request)", "StreamingUpdate.from_request(request)"),
        "ignore seeds that would bias rejection, pass a request's cache_salt to the worker",
    ),
    Hook(
        SCHEDULER,
        "Scheduler",
        "update_from_output",
        "self scheduler_output model_runner_output",
        ("self.make_spec_decoding_stats(", "request.spec_decode_metrics.observe("),
        "receive the drafter's counters",
        (Older("0.28", "self scheduler_output model_runner_output", ("self.make_spec_decoding_stats(",)),),
    ),
    Hook(
        SCHEDULER,
        "Scheduler",
        "make_stats",
        "self spec_decoding_stats kv_connector_stats",
        ("kv_connector_stats=connector_stats_payload",),
        "send them to the front end",
    ),
    Hook(
        SCHEDULER,
        "Scheduler",
        "make_spec_decoding_stats",
        "self spec_decoding_stats num_draft_tokens num_accepted_tokens num_invalid_spec_tokens request_id",
        (),
        "count drafts that were verified",
    ),
    Hook(
        "v1/metrics/stats.py",
        "RequestSpecDecodeMetrics",
        "observe",
        "self num_draft_tokens num_accepted detailed",
        (),
        "count verified drafts for each request",
        (Older("0.28", None),),
    ),
    Hook(
        SCHEDULER,
        "Scheduler",
        "_handle_stopped_request",
        "self request",
        ("safe_frontier = request.num_computed_tokens - request.num_output_placeholders",),
        "begin a session's turn after the tokens of the previous one",
        (Older("0.30", "self request", ("self._update_request_as_session(request, update)",)),),
    ),
    Hook(
        SCHEDULER,
        "Scheduler",
        "_update_after_schedule",
        "self scheduler_output",
        (),
        "plan no more draft tokens than leave room for all requests",
    ),
    Hook(
        "v1/core/sched/async_scheduler.py",
        "AsyncScheduler",
        "_update_after_schedule",
        "self scheduler_output",
        ("super()._update_after_schedule(scheduler_output)", "[-1] * scheduler_output.num_spec_tokens_to_schedule"),
        "",
    ),
    # the worker
    Hook("v1/core/sched/output.py", "NewRequestData", "prompt_len", "self", (), "", (Older("0.28", None),)),
    Hook(
        "v1/worker/gpu/spec_decode/__init__.py",
        "",
        "init_speculator",
        "vllm_config device req_states",
        (),
        "build the drafter",
        (Older("0.31", "vllm_config device"),),
    ),
    Hook(
        RUNNER,
        "GPUModelRunner",
        "__init__",
        "self vllm_config",
        ("init_speculator(self.vllm_config, self.device, self.req_states)", "self.step_timing = StepTimingCollector()"),
        "",
        (
            Older(
                "0.31",
                "self vllm_config",
                ("init_speculator(self.vllm_config, self.device)", "self.step_timing = StepTimingCollector()"),
            ),
        ),
    ),
    Hook(
        RUNNER,
        "GPUModelRunner",
        "initialize_kv_cache",
        "self kv_cache_config",
        (
            "maybe_create_adaptive_verification_manager(",
            "getattr(self.speculator, 'enable_adaptive_verification', False)",
            "req_states=self.req_states",
        ),
        "give the drafter the states of requests, time steps",
    ),
    Hook(
        ADAPTIVE,
        "",
        "maybe_create_adaptive_verification_manager",
        "enable_adaptive_verification attn_groups req_states",
        ("return AdaptiveVerificationManager(",),
        "choose what is verified",
        (
            Older(
                "0.30",
                "enable_adaptive_verification attn_groups attn_cg_support req_states",
                ("return AdaptiveVerificationManager(",),
            ),
        ),
    ),
    Hook(
        RUNNER,
        "GPUModelRunner",
        "execute_model",
        "self scheduler_output",
        (
            "self.finish_requests(scheduler_output)",
            "self.lora_state.make_lora_inputs(input_batch.req_ids, input_batch.idx_mapping_np, "
            "input_batch.num_scheduled_tokens)",
            "self._set_active_loras(*lora_inputs)",
            "self.step_timing.record_batch(",
            "self.step_timing.forward_start()",
        ),
        "",
    ),
    Hook(
        RUNNER,
        "GPUModelRunner",
        "finish_requests",
        "self scheduler_output",
        ("scheduler_output.finished_req_ids",),
        "see requests begin and end",
    ),
    Hook(
        "v1/worker/gpu/lora_utils.py",
        "LoraState",
        "make_lora_inputs",
        "self req_ids idx_mapping num_scheduled_tokens",
        (
            "prompt_lora_mapping = tuple(lora_ids)",
            "return (prompt_lora_mapping, token_lora_mapping, active_lora_requests)",
        ),
        "apply adapters to the logits of drafts",
    ),
    Hook(
        RUNNER,
        "GPUModelRunner",
        "sample_tokens",
        "self grammar_output",
        (
            "async_output = AsyncOutput(",
            "draft_tokens = self.speculator.propose(input_batch, attn_metadata,",
            "num_sampled, num_rejected",
            "record_confidences(self.speculator.draft_token_confidence_probs, input_batch)",
            "self.draft_tokens_handler.set_draft_tokens(input_batch,",
        ),
        "see what a step samples, and draft",
    ),
    Hook(
        "v1/worker/gpu/spec_decode/utils.py",
        "DraftTokensHandler",
        "set_draft_tokens",
        "self input_batch draft_tokens",
        ("self.num_draft_tokens = draft_tokens.shape[1]",),
        "plan the scheduled number of drafts if it waits for them",
    ),
    Hook(
        "v1/worker/gpu/async_utils.py",
        "AsyncOutput",
        "__init__",
        "self model_runner_output sampler_output num_sampled_tokens main_stream copy_stream",
        ("self.copy_event.record(copy_stream)", "self.sampled_token_ids = async_copy_to_np("),
        "read what a step sampled",
    ),
    Hook(
        "v1/worker/gpu/async_utils.py",
        "AsyncOutput",
        "get_output",
        "self",
        ("self.copy_event.synchronize()", "return self.model_runner_output"),
        "report the number of verified drafts",
    ),
    Hook(
        "v1/worker/gpu/async_utils.py",
        "StepTimingCollector",
        "record_batch",
        "self input_batch full_cudagraph",
        (),
        "",
    ),
    Hook(SPECULATOR, "BaseSpeculator", "init_cudagraph_manager", "self cudagraph_mode", (), ""),
    Hook(SPECULATOR, "BaseSpeculator", "capture", "self", (), ""),
    Hook(
        SPECULATOR,
        "BaseSpeculator",
        "propose",
        "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected",
        (),
        "",
    ),
    Hook(
        SPECULATOR,
        "DraftModelSpeculator",
        "observe_verification",
        "self idx_mapping num_sampled num_rejected",
        ("self.acceptance_estimator.step(idx_mapping, num_sampled, num_rejected)",),
        "",
        (Older("0.29", None),),
    ),
    Hook(
        VERIFIER,
        "RejectionSampler",
        "_verify",
        "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping",
        (
            "sampled, num_sampled = rejection_sample(processed_logits, draft_logits, verify_draft_sampled, "
            "cu_num_logits, pos, idx_mapping, expanded_idx_mapping, expanded_local_pos,",
        ),
        "",
        (
            Older(
                "0.31",
                "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping",
                (
                    "sampled, num_sampled = rejection_sample(processed_logits, draft_logits, draft_sampled, "
                    "cu_num_logits, pos, idx_mapping, expanded_idx_mapping, expanded_local_pos,",
                ),
            ),
        ),
    ),
    LOGPROBS,
    Hook(
        "v1/worker/gpu/spec_decode/rejection_sampler_utils.py",
        "",
        "rejection_sample",
        "target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping",
        (),
        "verify by seed and position",
    ),
    Hook(
        "v1/worker/gpu/sample/gumbel.py",
        "",
        "gumbel_sample",
        "logits expanded_idx_mapping temperature seed pos",
        (),
        "",
    ),
    *(
        Hook(ADAPTIVE, "AdaptiveVerificationManager", name, parameters, has, "")
        for name, parameters, has in (
            ("add_request", "self req_idx", ("self._stale_confidences[self._stale_idx].np[req_idx].fill(1.0)",)),
            (
                "get_num_tokens",
                "self num_tokens_per_req draft_tokens",
                ("_stale_confidences[self._stale_idx].np[slots]",),
            ),
            ("record_confidences", "self confidence_probs input_batch", ("self._pending_resets",)),
            (
                "reallocate_drafts",
                "self req_ids idx_mapping",
                (
                    "_assign_draft_token_budget_compiled("
                    "self._confidence_probs, idx_mapping, capacities, draft_budget, self.num_speculative_steps)",
                    "capacities = self._batch_draft_capacity[:num_reqs]",
                ),
            ),
            ("batches_to_profile", "self capture_sizes", ('"context_len": envs.',)),
            ("set_initial_cost_curves", "self samples", ("self.set_cost_curves(draft_curve, verify_curve)",)),
            ("set_cost_curves", "self draft_curve verify_curve", ("get_tp_group().broadcast_object(",)),
        )
    ),
)


def is_patched(folder: Path) -> bool:
    """Whether this copy of vLLM's package has this project's patches for method sam."""
    tree = hooks.tree(folder / "config" / "speculative.py")
    return tree is not None and any(
        isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id == "sam"
        for owner in tree.body
        if isinstance(owner, ast.ClassDef) and owner.name == "SpeculativeConfig"
        for field in owner.body
    )


VLLM = hooks.Hooks("vLLM", "vllm", RELEASES, HOOKS, "config", is_patched)


@cache
def check(folder: Path, version: str) -> None:
    """Raise ValueError, one sentence, unless all hooks fit this copy of vLLM's package."""
    VLLM.check(folder, version, f"install vLLM {nearest(version)}, or leave speculative_config out")


def nearest(version: str) -> str:
    """The release to install instead of this version: the last of RELEASES if it is newer than that, else WHOLE."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    newest = tuple(map(int, RELEASES[-1].split(".")))
    return RELEASES[-1] if numbers and tuple(map(int, numbers.groups())) > newest else WHOLE


if __name__ == "__main__":
    sys.exit(VLLM.main("sam_core.engines.vllm.hooks"))
