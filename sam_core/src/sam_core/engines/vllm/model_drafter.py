# SPDX-License-Identifier: Apache-2.0
"""Method sam together with a drafter of vLLM's second runner that is a model: MTP, EAGLE, DFlash or a draft model.

The model drafter runs as without sam, because its cache needs each token. Then the device chooses a draft per request:
that of the automaton, or the model drafter's, extended by what follows it in the texts (see `sam_core.kernels`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from sam_core.engines.vllm.runner2 import Speculator
from sam_core.kernels import ModelDrafts

GRAPHS_OF_FIRST_PASS = ("prefill_cudagraph_manager", "cudagraph_manager")
"""Graphs of a pass over the tokens that the engine has verified: of the first pass, or in MTP with a module per pass of
all passes (gpu/spec_decode/target_dependent_ar and multi_module_mtp; autoregressive up to vLLM 0.31)."""


def combine(drafter: Any, sam: Speculator, vllm_config: Any) -> Any:
    """Let vLLM's DraftModelSpeculator draft together with `sam`, and return it.

    Its class becomes a subclass of its class, since the runner asks for DraftModelSpeculator.

    Args:
        drafter: the model drafter, which drafts sam.num_model_tokens tokens per request.
        vllm_config: the engine's VllmConfig.
    """
    kind: Any = type(drafter)
    drafter.__class__ = _combined(kind)
    drafter.sam, drafter.engine_config = sam, vllm_config
    # Other data-parallel ranks wait for each pass.
    drafter.chooses_passes = chooses_passes(kind) and vllm_config.parallel_config.data_parallel_size == 1
    drafter.own_confidences = getattr(drafter, "draft_token_confidence_probs", None)  # up to 0.29 of DSpark only
    drafter.draft_token_confidence_probs = sam.draft_token_confidence_probs
    return drafter


def chooses_passes(kind: type) -> bool:
    """Whether a drafter of this class runs one pass per draft token, and no more than `propose` asks for.

    These are EAGLE and MTP with one module from vLLM 0.32 on (gpu/spec_decode/target_dependent_ar).
    """
    return any(each.__name__ == "TargetDependentARSpeculator" for each in kind.__mro__)


@functools.cache
def _combined(kind: Any) -> Any:
    class Combined(kind):
        sam: Speculator

        @contextlib.contextmanager
        def _with_own_confidences(self) -> Iterator[None]:
            """The runner reads the confidences of `sam`, [max_num_reqs, k]; the drafter writes its narrower ones."""
            self.draft_token_confidence_probs = self.own_confidences
            try:
                yield
            finally:
                self.draft_token_confidence_probs = self.sam.draft_token_confidence_probs

        def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
            """Prepare graphs; those of verified tokens are for k + 1 tokens per request."""
            super().init_cudagraph_manager(cudagraph_mode)
            for name in GRAPHS_OF_FIRST_PASS:
                if manager := vars(self).get(name):
                    mode = manager.cudagraph_mode  # MTP with a module per pass has changed it
                    setattr(self, name, type(manager)(self.engine_config, self.device, mode, self.sam.k + 1))

        def capture(self) -> None:
            """Capture the drafter's graphs, which write its own confidences."""
            with self._with_own_confidences():
                super().capture()

        def propose(
            self, input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
        ) -> torch.Tensor:
            """Drafts of both for the next step: int64 [B, k]; see Speculator.propose."""
            sam, count = self.sam, self.num_speculative_steps
            if self.chooses_passes and not kwargs.get("dummy_run"):
                planned = count if num_speculative_tokens is None else num_speculative_tokens
                count = min(planned, count if sam.runs_all_passes else 1)
            passes = {"num_speculative_tokens": count} if self.chooses_passes else {}
            with self._with_own_confidences():
                tokens = super().propose(input_batch, *args, **passes, **kwargs)
            if sam.pauses and not kwargs.get("dummy_run"):
                sam.pauses.drafted(count)
            model = None
            if count:
                confidences = None
                if sam.enable_adaptive_verification and self.own_confidences is not None:
                    confidences = self.own_confidences[: len(tokens), :count]
                model = ModelDrafts(tokens[:, :count], confidences, self.num_speculative_steps)
            return sam.propose(input_batch, *args, model=model, **kwargs)

        def observe_verification(
            self, idx_mapping: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor
        ) -> None:
            """Let the drafter's acceptance estimator learn from its own tokens alone."""
            if not self.sam.proposer.drafting:
                return  # only the first rank's confidences count
            of_model = self.sam.drafter.num_of_model[idx_mapping]
            accepted = torch.minimum(num_sampled - 1, of_model).clamp(min=0)
            rejected = torch.minimum(num_rejected, of_model - accepted)
            super().observe_verification(idx_mapping, accepted + 1, rejected)

    Combined.__name__ = f"Sam{kind.__name__}"
    return Combined
