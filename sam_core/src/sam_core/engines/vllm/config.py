# SPDX-License-Identifier: Apache-2.0
"""Reads and checks speculation and sampling in vLLM's arguments and configuration."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sam_core.options import DEFAULT_K, VERIFY, Options, check_choice

LOGGER = logging.getLogger("vllm.sam_core")
_warn_once = functools.cache(LOGGER.warning)
TRAINER_CHECKS: list[Callable[[], None]] = []
"""Called before an engine is configured with method sam; each raises ValueError if the trainer does not fit."""
STATE_K = 3
"""Draft tokens by default for a model with state layers (linear attention, Mamba), which keep k + 1 states of each
request."""
MAX_STATE_K = 7
"""Draft tokens that vLLM's fused kernel for gated delta nets takes (model_executor/layers/mamba/gdn)."""


def speculative_config(engine_args: Mapping[str, Any]) -> Mapping[str, Any]:
    """An engine's `speculative_config`, given as a mapping or as its JSON; empty if it is neither."""
    speculative = engine_args.get("speculative_config")
    if isinstance(speculative, str):
        with contextlib.suppress(ValueError):
            speculative = json.loads(speculative)
    return speculative if isinstance(speculative, Mapping) else {}


def names_sam(speculative: Mapping[str, Any]) -> bool:
    """Whether a `speculative_config` has method sam, alone or together with a drafter of the model's own."""
    return speculative.get("method") == "sam" or speculative.get("sam") is not None


def has_sam(vllm_config: Any) -> bool:
    """Whether an engine's VllmConfig has method sam, by the patches or by the plugin."""
    speculative = vllm_config.speculative_config
    return speculative is not None and (speculative.method == "sam" or getattr(speculative, "is_sam", False))


def check_trainer() -> None:
    """Raise ValueError, one sentence, if the trainer that runs this process does not fit method sam."""
    for check in TRAINER_CHECKS:
        check()


def check_speculative_config(config: Any, interface: str) -> None:
    """Complete and check a vLLM SpeculativeConfig of method sam. Raises ValueError, one sentence, if it is wrong.

    Args:
        config: has target_model_config and target_parallel_config; changed in place.
        interface: major.minor of the sam_core that the patches are written for.
    """
    check_trainer()
    check_layers(config.target_model_config)
    if config.num_speculative_tokens is None:
        config.num_speculative_tokens = default_k(config.target_model_config)
    warn_of_states(config)
    Options.from_engine(config.num_speculative_tokens, config.sam, interface=interface, verify=VERIFY)
    for name in ("pipeline_parallel_size", "prefill_context_parallel_size"):  # vLLM 0.11 lacks the second
        if (size := getattr(config.target_parallel_config, name, 1)) > 1:
            raise ValueError(
                f"speculative method 'sam' does not work with {name} above 1: set it to 1 instead of {size}"
            )
    config.draft_model_config = config.target_model_config
    config.draft_parallel_config = config.target_parallel_config


def has_state_layers(model: Any) -> bool:
    """Whether layers of a vLLM ModelConfig keep a state of each request rather than keys and values of its tokens."""
    return bool(model.is_hybrid or model.is_attention_free)


def default_k(model: Any) -> int:
    """Draft tokens for a vLLM ModelConfig if the user does not name a number."""
    return STATE_K if has_state_layers(model) else DEFAULT_K


def warn_of_states(config: Any) -> None:
    """Log a warning if a vLLM SpeculativeConfig has too many draft tokens for state layers."""
    if has_state_layers(config.target_model_config) and config.num_speculative_tokens > MAX_STATE_K:
        LOGGER.warning(
            "num_speculative_tokens is %d: each draft token adds one state of this model's state layers per request, "
            "and vLLM's fused kernel takes at most %d draft tokens",
            config.num_speculative_tokens,
            MAX_STATE_K,
        )


def check_layers(model: Any) -> None:
    """Raise ValueError unless the patched first runner can verify drafts in the layers of a vLLM ModelConfig."""
    if not has_state_layers(model):
        return
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    problem = None
    if not hasattr(CachedRequestState, "num_accepted_tokens"):  # patch vllm/0015 of pin set vllm-0.23 adds it
        problem = "this vLLM reads wrong states in rows without drafts"
    elif current_platform.is_out_of_tree():
        problem = "vllm-ascend verifies in them only drafts of num_speculative_tokens tokens, and sam may draft fewer"
    elif not hasattr(model.hf_text_config, "linear_num_value_heads"):
        problem = "the patches work with gated delta nets only (vLLM 0.32 or later with the plugin drafts for others)"
    elif current_platform.is_cpu():
        problem = "on a CPU vLLM verifies no drafts in them"
    if problem:
        raise ValueError(
            f"layers of this model keep a state (linear attention, Mamba), and {problem}: use a model with attention "
            "layers only, or no speculation"
        )


def check_request(vllm_config: Any, params: Any, resumable: bool) -> None:
    """Raise ValueError for a request that the patched first runner answers wrongly with method sam.

    Args:
        params: its SamplingParams or PoolingParams.
        resumable: whether it is the first turn of a session.
    """
    if resumable:
        check_session(vllm_config)
    if getattr(params, "thinking_token_budget", None) is not None:
        raise ValueError(
            "thinking_token_budget is not supported with speculative method 'sam' in this vLLM: leave it out, or use "
            "vLLM 0.28 or later with the plugin"
        )


def check_session(vllm_config: Any) -> None:
    """Raise ValueError if an engine of this VllmConfig cannot resume a session."""
    if has_sam(vllm_config) and has_state_layers(vllm_config.model_config):
        raise ValueError(
            "streaming input is not supported with speculative method 'sam' on a model with state layers: send each "
            "turn as a request with all tokens before it"
        )


def check_one_scheduler(parallel: Any) -> None:
    """Raise ValueError if each rank of a vLLM ParallelConfig has a scheduler of its own."""
    if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
        raise ValueError(
            "speculative method 'sam' drafts on the first rank for one scheduler, and distributed_executor_backend "
            f"'external_launcher' gives each of {parallel.world_size} ranks one of its own: use mp or ray"
        )


def proposer_settings(vllm_config: Any, tp_group: Any) -> dict[str, Any]:
    """Arguments of both runners' proposers that follow from an engine's VllmConfig and tensor-parallel group."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    rank = "data_parallel_index" if hasattr(parallel, "data_parallel_index") else "data_parallel_rank"  # vLLM 0.11
    return {
        "vocab_size": model.get_vocab_size(),
        "tokenizer": model.tokenizer,
        "drafting": tp_group.is_first_rank,
        "rank": getattr(parallel, rank),
        "logger": LOGGER,
    }


def graph_sizes(vllm_config: Any) -> Sequence[int]:
    """Rows of the graphs that an engine of this VllmConfig captures; none in eager mode."""
    compilation = vllm_config.compilation_config
    return () if vllm_config.model_config.enforce_eager else compilation.cudagraph_capture_sizes or ()


def sampling_mode(vllm_config: Any) -> str:
    """How an engine with this VllmConfig samples; see `verify_mode`."""
    speculative = vllm_config.speculative_config
    method, sam = (speculative.method, getattr(speculative, "sam", None)) if speculative else (None, None)
    return verify_mode(method, sam, vllm_config.additional_config)


def verify_mode(method: str | None, sam: Mapping[str, Any] | None, additional: Mapping[str, Any] | None = None) -> str:
    """How an engine samples: `rejection` (the engine's own method) or `seeded`.

    With method sam this is option `verify`. With another method or none, for comparisons, it is `sam_verify` in
    additional_config. Raises ValueError if that is unknown.

    Args:
        method: the speculative method, or None.
        sam: the options of method sam.
        additional: the engine's additional_config.
    """
    if method == "sam" or sam is not None:
        mode: str = (sam or {}).get("verify", Options.verify)
        return mode
    mode = (additional or {}).get("sam_verify", Options.verify)
    check_choice("additional_config.sam_verify", mode, VERIFY)
    return mode


def ignore_seed(sam: Mapping[str, Any] | None, params: Any) -> None:
    """Remove the seed from a request's SamplingParams if method sam verifies by rejection sampling.

    Drafts may come from an earlier answer to the same prompt. If that answer had the same seed, the drafts would depend
    on the random numbers that verify them, and the new answer would not follow the model's distribution.

    Args:
        sam: the options of method sam.
        params: the engine's own copy, which is changed.
    """
    if params.seed is not None and verify_mode("sam", sam) == "rejection":
        params.seed = None
        _warn_once("seeds of requests have no effect with method sam and verify: rejection; use verify: seeded")


def replica_history(engine_args: dict[str, Any], replica: int) -> None:
    """Give one of several engines with the same arguments its own folder inside the folder of option `history`.

    Replaces `speculative_config` in `engine_args` and leaves the old value unchanged; arguments that the engine will
    refuse are left as they are.
    """
    speculative = speculative_config(engine_args)
    sam = speculative.get("sam")
    if isinstance(sam, Mapping) and isinstance(folder := sam.get("history"), str):
        engine_args["speculative_config"] = {**speculative, "sam": {**sam, "history": f"{folder}/replica-{replica}"}}
