# SPDX-License-Identifier: Apache-2.0
"""Rebinds methods where an engine is configured and requests arrive: parameters, routing, counters."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam_core.engines.hooks import problem, rebind
from sam_core.engines.vllm.config import LOGGER, check_session, check_trainer, has_sam
from sam_core.engines.vllm.hooks import LOGPROBS, check
from sam_core.engines.vllm.metrics import EngineMetrics
from sam_core.engines.vllm.plugin import core
from sam_core.engines.vllm.routing import EngineRoutes

if TYPE_CHECKING:
    from pydantic import ValidationError

FLAGS = (("spec_method", "method"), ("spec_model", "model"), ("spec_tokens", "num_speculative_tokens"))
"""Arguments of vLLM that set a key of --speculative-config."""


def create_speculative_config(engine_args: Any, target_model_config: Any, target_parallel_config: Any) -> Any:
    """The SamSpeculativeConfig of an engine's EngineArgs. Raises ValueError, or pydantic's subclass, if invalid."""
    import vllm

    check(Path(vllm.__file__).parent, vllm.__version__)
    check_trainer()
    from sam_core.engines.vllm.plugin.config import SamSpeculativeConfig

    values = {key.replace("-", "_"): value for key, value in (engine_args.speculative_config or {}).items()}
    for flag, key in FLAGS:
        if (value := getattr(engine_args, flag)) is not None:
            if key in values:
                raise ValueError(f"--{flag.replace('_', '-')} and --speculative-config['{key}'] exclude each other")
            values[key] = value
    if values.get("method") == core.CARRIER:
        values["method"] = "ngram"  # refused by the configuration, where CARRIER stands for sam alone
    if values.get("method") == "sam" or not values.keys() & {"method", "model"}:
        values["method"] = core.CARRIER
    values |= {
        "target_model_config": target_model_config,
        "target_parallel_config": target_parallel_config,
    }
    install()
    core.install()
    return SamSpeculativeConfig(**values)


def sentence(error: ValidationError) -> str:
    """The error of a SamSpeculativeConfig without the lines that pydantic adds."""
    return "; ".join(
        each["msg"].removeprefix("Value error, ")
        if each["type"] == "value_error"
        else f"speculative_config.{'.'.join(map(str, each['loc']))}: {each['msg']}"
        for each in error.errors()
    )


@functools.cache
def install() -> None:
    """Rebind names in the process that configures an engine with method sam; other engines behave as before."""
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.core_client import DPLBAsyncMPClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerManager

    rebind(VllmConfig, "_maybe_disable_dynamic_sd_for_data_parallel", _check_adaptive_verification)
    rebind(SamplingParams, "_validate_spec_decode", _validate_spec_decode)
    rebind(InputProcessor, "process_inputs", _process_inputs)
    rebind(DPLBAsyncMPClient, "get_core_engine_for_request", _get_core_engine_for_request)
    rebind(DPLBAsyncMPClient, "__init__", _make_routes)
    DPLBAsyncMPClient.process_engine_outputs = staticmethod(
        _process_engine_outputs(DPLBAsyncMPClient.process_engine_outputs)
    )
    rebind(PrometheusStatLogger, "__init__", _register_metrics)
    rebind(StatLoggerManager, "record", _record)


def _check_adaptive_verification(disable: Callable[[Any], None]) -> Callable[[Any], None]:
    def decide(self: Any) -> None:
        adaptive = has_sam(self) and self.speculative_config.enable_adaptive_verification
        if adaptive and (reason := why_not_adaptive(self)):
            speculative = self.speculative_config
            speculative.choose_by_batch_size()
            how = "chooses draft lengths per batch size instead of per request"
            if self.parallel_config.data_parallel_size > 1:
                how = f"verifies {speculative.num_speculative_tokens} tokens per request at any batch size"
            LOGGER.warning("sam's switch 'auto' %s: vLLM's adaptive verification %s", how, reason)
        disable(self)

    return decide


def why_not_adaptive(vllm_config: Any) -> str | None:
    """Why vLLM cannot verify a number of tokens per request that the device chooses, or None.

    vLLM itself would refuse to start (for example config/vllm.py, _validate_adaptive_verification), or choose another
    attention backend (v1/attention/selector.py).
    """
    import vllm

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    mode = vllm_config.compilation_config.cudagraph_mode
    if problem(Path(vllm.__file__).parent, LOGPROBS):
        return "gives no log-probabilities in this release"
    if vllm_config.lora_config is not None:
        return "does not support LoRA"
    if parallel.pipeline_parallel_size > 1:
        return "does not support pipeline parallelism"
    if model.enforce_eager or mode is None or not mode.has_full_cudagraphs():
        return "needs full CUDA graphs: cudagraph_mode FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE"
    if getattr(model, "return_sampling_mask", False) or getattr(model, "enable_return_routed_experts", False):
        return "does not support enable_return_routed_experts and return_sampling_mask"
    if getattr(parallel, "enable_batch_sharded_sampling", False):
        return "does not support enable_batch_sharded_sampling"
    if getattr(vllm_config.speculative_config, "use_local_argmax_reduction", False):
        return "does not support use_local_argmax_reduction"
    if vllm_config.speculative_config.has_state_layers:
        layers = "layers that keep a state"
    elif model.use_mla:
        layers = "MLA"
    else:
        return _backend_problem(vllm_config)
    # their backends are known when the engine has started, and vLLM checks them then
    named = vllm_config.speculative_config.names_switch
    return None if named else f"is not known to work with the model's {layers} (to try it, name switch 'auto')"


def _backend_problem(vllm_config: Any) -> str | None:
    """What the attention backend of the engine lacks, or None.

    Also None if the backend is unknown before the engine starts; vLLM then reports the problem itself.
    """
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.selector import get_attn_backend
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    model, cache = vllm_config.model_config, vllm_config.cache_config
    vllm_config = copy.copy(vllm_config)
    vllm_config.speculative_config = speculative = copy.copy(vllm_config.speculative_config)
    speculative.enable_adaptive_verification = False  # otherwise the selector excludes the backend
    try:
        with set_current_vllm_config(vllm_config):
            backend = get_attn_backend(model.get_head_size(), model.dtype, cache.cache_dtype)
            if not backend.supports_device_cpu_query_lens_mismatch():
                return f"does not support the attention backend {backend.get_name()}"
            spec = FullAttentionSpec(
                block_size=cache.block_size or 16,
                num_kv_heads=model.get_num_kv_heads(vllm_config.parallel_config),
                head_size=model.get_head_size(),
                dtype=model.dtype,
            )
            builder = backend.get_builder_cls()
            if builder.get_cudagraph_support(vllm_config, spec) == AttentionCGSupport.ALWAYS:
                return None
            longest = None
            if hasattr(builder, "get_varlen_cudagraph_max_query_len"):  # in vLLM 0.30 ALWAYS is needed
                longest = builder.get_varlen_cudagraph_max_query_len(vllm_config, spec)
            if longest is None or longest <= speculative.num_speculative_tokens:
                return f"needs graphs for drafts of any length, which the attention backend {backend.get_name()} lacks"
            return None
    except (AttributeError, ImportError, NotImplementedError, TypeError, ValueError) as error:
        LOGGER.debug("the attention backend is not known yet: %s", error)
        return None


def _validate_spec_decode(validate: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def validate_spec_decode(self: Any, speculative_config: Any) -> None:
        if not getattr(speculative_config, "is_sam", False):
            return validate(self, speculative_config)
        # The second runner's sampler applies min_p and logit_bias to rows of drafts too.
        if getattr(self, "logprob_token_ids", None):
            raise ValueError(
                "logprob_token_ids is not returned for verified drafts (vLLM pull request 44727): leave it out, or "
                "speculative_config"
            )

    return validate_spec_decode


def _process_inputs(process: Callable[..., Any]) -> Callable[..., Any]:
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("resumable"):
            check_session(self.vllm_config)
        return process(self, *args, **kwargs)

    return process_inputs


def _make_routes(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        init(self, vllm_config, *args, **kwargs)
        self.sam_routes = None
        if has_sam(vllm_config):
            self.sam_routes = EngineRoutes.from_options(vllm_config.speculative_config.sam, self.eng_start_index)

    return __init__


def _get_core_engine_for_request(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def get_core_engine_for_request(self: Any, request: Any) -> Any:
        routes = self.sam_routes
        if routes is None:
            return choose(self, request)
        own = request.data_parallel_rank
        if own is None and request.pooling_params is None:
            request.data_parallel_rank = routes.choose(request, len(self.lb_engines))
        try:
            engine = choose(self, request)
        finally:
            request.data_parallel_rank = own
        routes.sent(request.request_id, self.core_engines.index(engine))
        return engine

    return get_core_engine_for_request


def _process_engine_outputs(process: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(process)
    async def process_engine_outputs(self: Any, outputs: Any) -> None:
        await process(self, outputs)
        if outputs.finished_requests and self.sam_routes:
            self.sam_routes.ended(outputs.finished_requests)

    assert asyncio.iscoroutinefunction(process)
    return process_engine_outputs


def _register_metrics(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        init(self, vllm_config, *args, **kwargs)
        self.sam_metrics = None
        if has_sam(vllm_config):
            labels = self._counter_cls, self._gauge_cls, ("model_name", "engine"), self.per_engine_labelvalues
            self.sam_metrics = EngineMetrics(*labels)

    return __init__


def _record(record: Callable[..., None]) -> Callable[..., None]:
    def record_sam(
        self: Any,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        report = core.take_report(scheduler_stats)
        record(self, scheduler_stats, iteration_stats, mm_cache_stats=mm_cache_stats, engine_idx=engine_idx, **kwargs)
        for logger in self.stat_loggers if report else ():
            if metrics := getattr(logger, "sam_metrics", None):
                metrics.observe(report, engine_idx or 0)

    return record_sam
