# SPDX-License-Identifier: Apache-2.0
"""The patched engine on the first model runner, with forced tokens and a drafter that is exchanged between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sam_lab.cli import LabError
from sam_lab.engine_replay.forced import Forced


class ForcedEngine(Forced):
    """An engine whose next tokens are forced and, if it speculates, whose drafter is chosen for each run.

    Args:
        model: folder with a config.json.
        k: maximum draft tokens of a request; 0: an engine without speculation.
        asynchronous: whether it plans a step while the previous one runs; raises LabError if it cannot.
        graphs: vLLM's cudagraph_mode; raises LabError if vLLM uses another one.
        settings: further EngineArgs.
    """

    def __init__(
        self,
        model: Path,
        k: int,
        verify: str = "rejection",
        asynchronous: bool = False,
        graphs: str = "NONE",
        **settings: Any,
    ) -> None:
        speculative = {"method": "sam", "num_speculative_tokens": k, "sam": {"verify": verify}}
        super().__init__(model, speculative if k else None, asynchronous, graphs, **settings)
        if asynchronous and not self.asynchronous:
            raise LabError("vLLM schedules synchronously on this platform: leave out arms that end in @async")
        if self.graphs.name != graphs:
            raise LabError(f"--graphs {graphs}: vLLM turns this into {self.graphs.name} here")
        self._wanted: torch.Tensor | None = None
        self._owners: torch.Tensor | None = None
        self._hook()

    def _hook(self) -> None:
        runner, model = self.runner, self.runner.model
        prepare, logits_of = runner._prepare_inputs, model.compute_logits

        def prepare_inputs(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            result = prepare(scheduled, *args, **kwargs)
            batch = runner.input_batch
            computed = batch.num_computed_tokens_cpu[: batch.num_reqs]
            rows = np.asarray([int(req_id.split("-")[0]) for req_id in batch.req_ids])
            of_tokens = torch.from_numpy(rows[runner.req_indices.np[: scheduled.total_num_scheduled_tokens]])
            self._wanted, self._owners = result[0], self._copied(of_tokens)
            self._step |= {
                "running": batch.num_reqs,
                "rows": scheduled.total_num_scheduled_tokens,
                "drafted": sum(len(d) for d in scheduled.scheduled_spec_decode_tokens.values()),
                "context": int(computed.sum()),
                "prefill": bool((computed < batch.num_prompt_tokens[: batch.num_reqs]).any()),
            }
            return result

        def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
            logits = logits_of(hidden)
            wanted, owners = self._wanted, self._owners
            if self._recorded is not None and wanted is not None and owners is not None and len(logits) == len(wanted):
                at = torch.as_tensor(wanted)
                self._force(logits, owners[at], runner.positions[at])
                self._wanted = None
            return logits

        runner._prepare_inputs, model.compute_logits = prepare_inputs, compute_logits

    def use(self, method: str, drafter: Any) -> None:
        """Let the next runs draft with this object, as the method with this name in vLLM."""
        self.runner.speculative_config.method, self.runner.drafter = method, drafter
        # the core asks for the drafts of all methods but sam, whose drafts come with each step's output
        self.engine.engine_core.engine_core.use_spec_decode = method != "sam"
