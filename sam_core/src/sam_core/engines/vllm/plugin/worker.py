# SPDX-License-Identifier: Apache-2.0
"""Rebinds names of the second runner (vllm/v1/worker/gpu/model_runner.py) where an engine samples, once per process.

The runner looks up these names in its module when it uses them. Runners of other engines in the same process behave as
before.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sam_core.engines.hooks import rebind
from sam_core.engines.vllm.config import LOGGER, graph_sizes, proposer_settings
from sam_core.engines.vllm.model_drafter import combine
from sam_core.engines.vllm.pauses import Pauses
from sam_core.engines.vllm.runner2 import ChainProposer, Speculator, keep_equal
from sam_core.engines.vllm.verification import Verification

_now = threading.local()
"""`.speculator`: that of the runner that samples in this thread, if it has method sam."""


def speculator_of(runner: Any) -> Speculator | None:
    """The drafter of a runner, if its engine has method sam."""
    speculator = getattr(runner, "speculator", None)
    speculator = getattr(speculator, "sam", speculator)  # of a model drafter
    return speculator if isinstance(speculator, Speculator) else None


def sampling() -> Speculator | None:
    """The drafter of the runner that samples in this thread."""
    return getattr(_now, "speculator", None)


def init_speculator(vllm_config: Any, device: torch.device, init_own: Callable[[Any], Any]) -> Any:
    """Build the drafter for a VllmConfig with method sam; replaces vLLM's function (gpu/spec_decode/__init__.py).

    Args:
        device: where the engine keeps drafts.
        init_own: vLLM's function, which builds the model drafter for a VllmConfig.
    """
    from vllm.distributed.parallel_state import get_tp_group

    install()
    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    tp_group, max_concurrent = get_tp_group(), vllm_config.max_concurrent_batches
    proposer = ChainProposer(
        speculative.num_speculative_tokens,
        speculative.sam,
        max_concurrent,
        **proposer_settings(vllm_config, tp_group),
    )
    if model.runner_type == "pooling":
        proposer.drafting = False  # its answers have no tokens
    speculator = Speculator(
        proposer,
        vllm_config.scheduler_config.max_num_seqs,
        model.max_model_len,
        device,
        tp_group,
        model.get_vocab_size(),
        max_concurrent,
        adaptive=speculative.enable_adaptive_verification,
        num_model_tokens=speculative.num_model_tokens,
        graph_sizes=graph_sizes(vllm_config),
    )
    if not speculative.num_model_tokens:
        return speculator
    own = copy.copy(vllm_config)
    own.speculative_config = speculative.of_model()
    return combine(init_own(own), speculator, vllm_config)


@functools.cache
def install() -> None:
    """Rebind names of the second runner."""
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.lora_utils import LoraState
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler
    from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler
    from vllm.v1.worker.worker_base import WorkerBase

    runner = model_runner.GPUModelRunner
    rebind(runner, "finish_requests", _finish_requests)
    rebind(LoraState, "make_lora_inputs", _make_lora_inputs)
    rebind(runner, "sample_tokens", _sample_tokens)
    rebind(runner, "initialize_kv_cache", _initialize_kv_cache)
    rebind(DraftTokensHandler, "set_draft_tokens", _set_draft_tokens)
    rebind(model_runner, "maybe_create_adaptive_verification_manager", _create_verification)
    rebind(rejection_sampler, "rejection_sample", _rejection_sample)
    model_runner.AsyncOutput = _async_output(model_runner.AsyncOutput)
    WorkerBase.sam_stats = _stats


def _finish_requests(finish: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def finish_requests(self: Any, scheduler_output: Any) -> None:
        if speculator := speculator_of(self):
            speculator.update_requests(scheduler_output)
            self.lora_state.sam_drafts = scheduler_output.scheduled_spec_decode_tokens
        finish(self, scheduler_output)

    return finish_requests


def _make_lora_inputs(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_lora_inputs(self: Any, req_ids: list[str], *args: Any) -> Any:
        """Give the adapter of each row of logits; vLLM gives one per request."""
        of_requests, *others = make(self, req_ids, *args)
        drafts = getattr(self, "sam_drafts", {})
        of_rows = np.repeat(of_requests, [1 + len(drafts.get(req_id, ())) for req_id in req_ids])
        return (tuple(of_rows.tolist()), *others)

    return make_lora_inputs


def _sample_tokens(sample: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        _now.speculator = speculator_of(self)
        try:
            return sample(self, grammar_output)
        finally:
            _now.speculator = None

    return sample_tokens


def _initialize_kv_cache(initialize: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> Any:
        if speculator := speculator_of(self):  # vLLM up to 0.31 builds it before the request states
            speculator.req_states, self.req_states.sam_speculator = self.req_states, speculator
            if speculator.pauses and not isinstance(self.step_timing, StepTiming):  # a cache may be made repeatedly
                self.step_timing = StepTiming(self.step_timing, speculator.pauses)
            if speculator.num_model_tokens:
                self.drafter = self.speculator  # verl 0.9.1 loads an MTP head's weights by the first runner's name
            if speculator.proposer.drafting:
                _log_states(kv_cache_config, self.vllm_config)
        return initialize(self, kv_cache_config, *args, **kwargs)

    return initialize_kv_cache


def _log_states(kv_cache_config: Any, vllm_config: Any) -> None:
    """Log how much memory a request's states take, if layers of the model keep any."""
    from vllm.v1.kv_cache_interface import MambaSpec

    groups = kv_cache_config.kv_cache_groups
    specs = [(group.kv_cache_spec, len(group.layer_names)) for group in groups]
    states = [(spec, count) for spec, count in specs if isinstance(spec, MambaSpec)]
    if not states:
        return
    one = sum(spec.page_size_bytes * count for spec, count in states)
    each = sum(spec.max_memory_usage_bytes(vllm_config) * count for spec, count in states)
    cache = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)
    LOGGER.info(
        "state layers: each request keeps %d states of %.1f MiB (num_speculative_tokens=%d); the cache of %.1f GiB "
        "fits the states of %d requests, not counting the KV cache of attention layers",
        each // one,
        one / 2**20,
        vllm_config.speculative_config.num_speculative_tokens,
        cache / 2**30,
        cache // each,
    )


def _set_draft_tokens(set_tokens: Callable[..., None]) -> Callable[..., None]:
    def set_draft_tokens(self: Any, input_batch: Any, draft_tokens: torch.Tensor) -> None:
        if speculator := sampling():  # vLLM up to 0.31 passes all of them to a scheduler that waits for drafts
            draft_tokens = draft_tokens[:, : speculator.num_planned]
        set_tokens(self, input_batch, draft_tokens)

    return set_draft_tokens


class StepTiming:
    """The runner's StepTimingCollector (gpu/async_utils.py) that also reports each step's start to the drafter."""

    def __init__(self, collector: Any, pauses: Pauses) -> None:
        self._collector, self._pauses = collector, pauses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)

    def record_batch(self, input_batch: Any, full_cudagraph: bool) -> None:
        self._collector.record_batch(input_batch, full_cudagraph)
        self._pauses.launched(input_batch)


def _create_verification(create: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_create_adaptive_verification_manager(**kwargs: Any) -> Any:
        manager = create(**kwargs)
        speculator = getattr(kwargs["req_states"], "sam_speculator", None)
        return Verification(manager, speculator) if manager is not None and speculator is not None else manager

    return maybe_create_adaptive_verification_manager


def _rejection_sample(reject: Callable[..., Any]) -> Callable[..., Any]:
    def rejection_sample(*args: Any, **kwargs: Any) -> Any:
        speculator = sampling()
        seeded = speculator is not None and speculator.proposer.options.verify == "seeded"
        return (keep_equal if seeded else reject)(*args, **kwargs)

    return rejection_sample


def _async_output(base: Any) -> Any:
    from vllm.v1.worker.gpu.async_utils import async_copy_to_np, stream

    class AsyncOutput(base):
        sam_speculator: Speculator | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.of_model: list[torch.Tensor] = []
            if (speculator := sampling()) and speculator.num_model_tokens and speculator.proposer.drafting:
                # The next drafts overwrite these two. super().__init__ makes the copy stream wait for the main stream,
                # so they are cloned before it.
                drafter = speculator.drafter
                self.of_model = [drafter.num_of_model.clone(), drafter.worth.clone()]
            super().__init__(*args, **kwargs)
            if speculator is None:
                return
            self.sam_speculator = speculator
            with stream(kwargs["copy_stream"], kwargs["main_stream"]):
                self.num_rejected_np = async_copy_to_np(self.sampler_output.num_rejected)
                self.of_model_np = [async_copy_to_np(each) for each in self.of_model]
                self.copy_event.record(kwargs["copy_stream"])
            speculator.observe_output(self)
            self.model_runner_output.sam_report = speculator.proposer.report()
            self.model_runner_output.sam_pauses = speculator.is_paused
            self.model_runner_output.sam_wants_all_passes = speculator.wants_all_passes

        @functools.cached_property
        def num_verified(self) -> list[int]:
            """The number of verified draft tokens of each request; read it once the step's tokens are on the host."""
            accepted = np.maximum(self.num_sampled_tokens_np - 1, 0)
            verified: list[int] = (accepted + self.num_rejected_np).tolist()
            return verified

        def get_output(self) -> Any:
            output = super().get_output()
            if self.sam_speculator is not None:
                output.sam_verified = dict(zip(output.req_ids, self.num_verified, strict=True))
            return output

    AsyncOutput.__qualname__ = base.__qualname__
    return AsyncOutput


def _stats(worker: Any) -> dict[str, Any] | None:
    """`collective_rpc("sam_stats")`: counters of the drafter; None for an engine without one."""
    speculator = speculator_of(worker.model_runner)
    return speculator.proposer.stats() if speculator else None
