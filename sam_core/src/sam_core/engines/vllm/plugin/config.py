# SPDX-License-Identifier: Apache-2.0
"""The configuration of method sam, a subclass of vLLM's. It is imported only when an engine requests sam.

vLLM's processes receive it pickled, so each of them imports this module and thereby the plugin.
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.config.speculative import SpeculativeConfig
from vllm.config.utils import config

from sam_core.engines.hooks import problem
from sam_core.engines.vllm.config import (
    LOGGER,
    check_one_scheduler,
    default_k,
    has_state_layers,
    warn_of_states,
)
from sam_core.engines.vllm.hooks import STATES
from sam_core.engines.vllm.plugin import core
from sam_core.engines.vllm.plugin.speculator import register_speculator
from sam_core.options import VERIFY, Options

SCHEDULE = ((8, 15), (32, 7), (128, 3))
"""Pairs of maximum requests and maximum draft tokens per request, for steps in which `auto` cannot choose per request:
the best schedule measured on an H100 (docs/gpu.md)."""

STATE_SCHEDULE = ((8, 7), (32, 3))
"""SCHEDULE for a model with state layers, in which each verified token writes a state."""
MODEL_METHODS = ("mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model")
"""vLLM's methods with a model drafter."""


def by_batch_size(k: int, schedule: tuple[tuple[int, int], ...] = SCHEDULE) -> list[tuple[int, int, int]]:
    """A schedule with at most k tokens per request, in the form of vLLM's num_speculative_tokens_per_batch_size."""
    ends = [0, *(last for last, _ in schedule)]
    steps = [(first + 1, last, min(most, k)) for first, (last, most) in zip(ends, schedule, strict=False)]
    return [*steps, (ends[-1] + 1, ends[-1] + 1, 0)]


@config
class SamSpeculativeConfig(SpeculativeConfig):
    """Method sam, with its options (see sam_core.options)."""

    sam: dict[str, Any] | None = None
    """Options of method `sam`."""
    num_model_tokens: int = 0
    """Draft tokens of the model drafter; 0 without one."""
    is_sam = True
    if TYPE_CHECKING:
        num_speculative_tokens: Any
        num_speculative_tokens_per_batch_size: Any

    def __post_init__(self) -> None:
        parallel = self.target_parallel_config
        self._check_state_layers()
        check_one_scheduler(parallel)
        if self.rejection_sample_method != "standard":
            raise ValueError(
                "speculative method 'sam' verifies exactly, which rejection_sample_method "
                f"{self.rejection_sample_method!r} does not: use 'standard'"
            )
        if self.draft_sample_method != "greedy":
            raise ValueError(
                "speculative method 'sam' drafts fixed tokens, and draft_sample_method "
                f"{self.draft_sample_method!r} asks for sampled ones: leave it out"
            )
        if getattr(self.target_model_config, "enable_trace_replay", False):
            raise ValueError(
                "speculative method 'sam' verifies drafts by the tokens that the model samples, which "
                "enable_trace_replay replaces: leave out enable_trace_replay or speculative_config"
            )
        if self.method != core.CARRIER:
            self._join_model()
        elif self.num_speculative_tokens is None:
            self.num_speculative_tokens = default_k(self.target_model_config)
        warn_of_states(self)
        options = Options.from_engine(self.num_speculative_tokens, self.sam, verify=VERIFY)
        own_schedule = self.num_speculative_tokens_per_batch_size is not None and not self.names_switch
        adaptive = options.switch == "auto" and not own_schedule
        if not adaptive and parallel.data_parallel_size > 1:
            raise ValueError(
                "sam's switch 'batch' needs vLLM's schedule by batch size, which engines with data parallelism "
                f"lack: set data_parallel_size to 1 instead of {parallel.data_parallel_size}, or use switch 'auto'"
            )
        if not adaptive and self.num_speculative_tokens_per_batch_size is None:
            self.num_speculative_tokens_per_batch_size = [
                (1, options.threshold, self.num_speculative_tokens),
                (options.threshold + 1, options.threshold + 1, 0),
            ]
        if not self.num_model_tokens:
            super().__post_init__()
        self.enable_adaptive_verification |= adaptive  # vLLM up to 0.29 sets it for DSpark only

    def _join_model(self) -> None:
        """Configure the model drafter, and then the longer drafts of both together."""
        super().__post_init__()
        if self.method not in MODEL_METHODS:
            raise ValueError(
                f"speculative method {self.method!r} cannot draft together with 'sam': use method 'sam' alone, or one "
                f"of {', '.join(MODEL_METHODS)}"
            )
        if self.num_speculative_tokens is None:
            raise ValueError(
                f"method {self.method!r} with 'sam' needs num_speculative_tokens, the model's draft tokens"
            )
        self.num_model_tokens = self.num_speculative_tokens
        self.num_speculative_tokens = max(default_k(self.target_model_config), self.num_model_tokens)
        LOGGER.info(
            "method %s drafts %d tokens per request, and sam continues or replaces them, up to %d",
            self.method,
            self.num_model_tokens,
            self.num_speculative_tokens,
        )

    def of_model(self) -> SamSpeculativeConfig:
        """The configuration of the model drafter."""
        own = copy.copy(self)
        own.num_speculative_tokens, own.num_speculative_tokens_per_batch_size = self.num_model_tokens, None
        return own

    def use_ngram_gpu(self) -> bool:
        return False  # otherwise vLLM up to 0.31 keeps no compiled graphs

    def _check_state_layers(self) -> None:
        """Raise ValueError if this vLLM computes wrong states for the model."""
        import vllm
        from vllm.platforms import current_platform

        if not self.has_state_layers:
            return
        if problem(Path(vllm.__file__).parent, STATES):
            raise ValueError(
                "this vLLM reads wrong states of the model's state layers (linear attention, Mamba) in steps without "
                "drafts: install vLLM 0.32 or later, or leave speculative_config out"
            )
        if current_platform.is_cpu():
            from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

            if "num_accepted_tokens" not in inspect.signature(causal_conv1d_update).parameters:
                raise ValueError(
                    "on a CPU vLLM computes verified tokens of the model's state layers (linear attention, Mamba) "
                    "unlike other tokens, or wrongly: use a GPU, or leave speculative_config out"
                )

    @property
    def has_state_layers(self) -> bool:
        """Whether layers of the model keep a state of each request."""
        return has_state_layers(self.target_model_config)

    @property
    def names_switch(self) -> bool:
        """Whether the options name the switch rather than leave it at its default."""
        return "switch" in (self.sam or {})

    def choose_by_batch_size(self) -> None:
        """Choose the number of verified tokens per batch size instead of per request.

        With data parallelism, which has no such schedule, always use the number for the largest scheduled batch.
        """
        self.enable_adaptive_verification = False
        if self.target_parallel_config.data_parallel_size > 1:
            self.num_speculative_tokens = max(min(SCHEDULE[-1][1], self.num_speculative_tokens), self.num_model_tokens)
        elif self.num_speculative_tokens_per_batch_size is None:
            schedule = STATE_SCHEDULE if self.has_state_layers else SCHEDULE
            self.num_speculative_tokens_per_batch_size = by_batch_size(self.num_speculative_tokens, schedule)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        register_speculator()
        core.install()

    def __repr__(self) -> str:
        own = f"method={self.method!r}, num_model_tokens={self.num_model_tokens}, " if self.num_model_tokens else ""
        return f"SamSpeculativeConfig({own}num_speculative_tokens={self.num_speculative_tokens}, sam={self.sam})"
