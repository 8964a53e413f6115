# SPDX-License-Identifier: Apache-2.0
"""The second model runner of an unpatched vLLM, with forced tokens. Each arm has its own engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sam_core.engines.vllm.plugin.front import why_not_adaptive
from vllm.platforms import current_platform

from sam_lab.cli import LabError
from sam_lab.engine_replay.forced import Forced

RESERVED, RESERVED_OF_ENGINE = 8 << 30, 1 << 30
"""Bytes of a GPU left free for activations and logits, which engines share, and for the graphs of each engine."""


def fitting(needed: int, engines: int, weights: int) -> int:
    """Bytes of each engine's cache: `needed`, or less if the engines and their common weights do not fit on the GPU."""
    if not current_platform.is_cuda():
        return needed
    most = (torch.cuda.mem_get_info()[0] - weights - RESERVED) // engines - RESERVED_OF_ENGINE
    if most < needed // 4:
        raise LabError(f"the GPU has too little memory for {engines} engines: name fewer --arms or --groups")
    return min(needed, most)


class ForcedEngine2(Forced):
    """An engine with the second runner, scheduled asynchronously.

    In the steps that `run` returns, `rows` are the computed rows, `drafted` the verified draft tokens, and
    `planned` the scheduled rows.

    Args:
        model: folder with a config.json.
        speculative: vLLM's speculative_config, or None. Raises LabError if switch `auto` cannot choose by request.
        graphs: vLLM's cudagraph_mode; adaptive verification may turn FULL into FULL_DECODE_ONLY.
        settings: further EngineArgs.
    """

    def __init__(self, model: Path, speculative: dict[str, Any] | None, graphs: str = "NONE", **settings: Any) -> None:
        super().__init__(model, speculative, True, graphs, **settings)
        config = self.engine.vllm_config
        if not (config.use_v2_model_runner and self.asynchronous):
            raise LabError("vLLM uses its first runner, or schedules synchronously, on this platform")
        adaptive = self.sam.get("switch") == "auto"
        if adaptive and not config.speculative_config.enable_adaptive_verification:
            reason = why_not_adaptive(config)
            raise LabError(f"arm 'auto' cannot choose by request here: vLLM's adaptive verification {reason}")
        if self.graphs.name != graphs and not (adaptive and self.graphs.has_full_cudagraphs()):
            raise LabError(f"--graphs {graphs}: vLLM turns this into {self.graphs.name} here")
        self._batch: Any = None
        self._owners: torch.Tensor | None = None
        self._hook()

    def _hook(self) -> None:
        """Wrap the runner's methods, to record each step and to force its logits."""
        runner, model = self.runner, self.runner.model
        add, sample, logits_of = runner.add_requests, runner.sample, model.compute_logits

        def add_requests(scheduled: Any) -> None:
            add(scheduled)
            if scheduled.scheduled_new_reqs:
                states = runner.req_states
                owners = np.zeros(states.max_num_reqs, np.int64)
                for req_id, row in states.req_id_to_index.items():
                    owners[row] = int(req_id.split("-")[0])
                self._owners = self._copied(torch.from_numpy(owners))

        def sample_batch(hidden: torch.Tensor, batch: Any, *args: Any) -> Any:
            self._step |= {
                "running": batch.num_reqs,
                "rows": batch.num_tokens,
                "planned": int(batch.num_scheduled_tokens.sum()),
                "drafted": batch.num_draft_tokens,
                "context": int(batch.num_computed_tokens_np.sum()),
                "prefill": batch.has_prefill,
            }
            self._batch = batch
            return sample(hidden, batch, *args)

        def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
            logits = logits_of(hidden)
            batch, self._batch = self._batch, None
            if batch is not None and self._owners is not None:
                states = batch.expanded_idx_mapping[: len(logits)].long()
                self._force(logits, self._owners[states], batch.positions[batch.logits_indices.long()])
            return logits

        runner.add_requests, runner.sample, model.compute_logits = add_requests, sample_batch, compute_logits
