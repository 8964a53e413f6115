# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine in this process, its next tokens forced to recorded answers, its drafter exchanged between runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import ModelConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from llm_rl.shape import Shape
from sam_lab.cli import LabError

FORCED = 1e4
SHARED = {"load_format": "one_copy", "gpu_memory_utilization": 0.01}
"""On CUDA: one copy of the weights, and no share of the memory that must be free, as the size of the cache is given.
Other platforms change weights after loading, so that engines cannot share them."""


def write_model(folder: Path, shape: Shape, max_model_len: int, dtype: str) -> None:
    """Write a config.json of this shape, for an engine with random weights."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if shape.experts else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if shape.experts else "qwen3",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.mlp,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "torch_dtype": dtype,
    }
    if shape.experts:
        config |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.mlp,
            "norm_topk_prob": True,
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


@register_model_loader("one_copy")
class OneCopy(DummyModelLoader):
    """Random weights that all engines of this process share."""

    weights: ClassVar[dict[str, torch.Tensor]] = {}

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        if not self.weights:
            super().load_weights(model, model_config)
            self.weights.update((name, parameter.data) for name, parameter in model.named_parameters())
            return
        for name, parameter in model.named_parameters():
            parameter.data = self.weights[name]
        torch.cuda.empty_cache()


class ForcedEngine:
    """An engine whose next tokens are forced and, if it speculates, whose drafter is chosen for each run.

    Args:
        model: folder with a config.json.
        k: maximum draft tokens of a request; 0: an engine without speculation.
        asynchronous: whether it plans a step while the one before runs; raises LabError where it cannot.
        graphs: vLLM's cudagraph_mode. The model is not compiled.
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
        settings = {"load_format": "dummy"} | settings | (SHARED if current_platform.is_cuda() else {})
        speculative = {"method": "sam", "num_speculative_tokens": k, "sam": {"verify": verify}}
        arguments = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            seed=0,
            enforce_eager=graphs == "NONE",
            compilation_config={"mode": "NONE", "cudagraph_mode": graphs},
            max_num_batched_tokens=2048,
            speculative_config=speculative if k else None,
            disable_log_stats=True,
            async_scheduling=asynchronous,
            **settings,
        )
        self.engine = LLMEngine.from_engine_args(arguments)
        if asynchronous and not self.engine.vllm_config.scheduler_config.async_scheduling:
            raise LabError("vLLM schedules synchronously on this platform: leave out arms that end in @async")
        if (mode := self.engine.vllm_config.compilation_config.cudagraph_mode.name) != graphs:
            raise LabError(f"--graphs {graphs}: vLLM turns this into {mode} here")
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner
        self.k = k
        self.asynchronous = asynchronous
        self.seeded = bool(k) and verify == "seeded"
        self._on_cpu = self.runner.device.type == "cpu"
        self.clock: Callable[[], float] = time.process_time if self._on_cpu else time.perf_counter
        self._recorded: torch.Tensor | None = None
        self._wanted: torch.Tensor | None = None
        self._owners: torch.Tensor | None = None
        self._now: dict[str, Any] = {}
        self._runs = 0
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
            self._now |= {
                "running": batch.num_reqs,
                "rows": scheduled.total_num_scheduled_tokens,
                "drafted": sum(len(d) for d in scheduled.scheduled_spec_decode_tokens.values()),
                "context": int(computed.sum()),
                "prefill": bool((computed < batch.num_prompt_tokens[: batch.num_reqs]).any()),
            }
            return result

        def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
            logits = logits_of(hidden)
            wanted = self._wanted
            recorded, owners = self._recorded, self._owners
            if recorded is not None and owners is not None and wanted is not None and len(logits) == len(wanted):
                at = torch.as_tensor(wanted)
                position = runner.positions[at].clamp(max=recorded.shape[1] - 2)
                tokens = recorded[owners[at], position + 1]
                logits.scatter_(1, tokens[:, None], FORCED)
                self._wanted = None
            return logits

        runner._prepare_inputs, model.compute_logits = prepare_inputs, compute_logits
        runner._sample = self._timed("sample_s", runner._sample)
        if self.k:
            runner.propose_draft_token_ids = self._timed("draft_s", runner.propose_draft_token_ids)

    def _copied(self, array: torch.Tensor) -> torch.Tensor:
        """On the runner's device; the host does not wait, as it would for work that asynchronous scheduling hides."""
        return array if self._on_cpu else array.pin_memory().to(self.runner.device, non_blocking=True)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = self.clock()
            result = function(*args, **kwargs)
            self._now[name] += self.clock() - start
            return result

        return call

    def run(
        self,
        answers: Sequence[tuple[Sequence[int], Sequence[int]]],
        drafter: tuple[str, Any] | None = None,
        temperature: float = 0.0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[list[dict[str, Any]], list[int]]:
        """Generate all answers at once, as one replica of a rollout does.

        Args:
            answers: prompt and recorded answer of each request.
            drafter: vLLM's name of the method, and the object that drafts; None leaves the engine's own.
            temperature: of the sampler, which takes the forced token at any.

        Returns:
            Each engine step: requests running, rows computed, draft tokens among them, context (tokens its requests
            held before it), tokens emitted, the requests that gained them, s, sample_s (sampling and verification),
            draft_s (with asynchronous scheduling also the wait for the step before) in seconds of the clock, and
            whether a prompt was read in it. And the requests whose answer was not the recorded one.
        """
        self.engine.reset_prefix_cache()  # of the prompts that another arm has read
        if drafter:
            self.runner.speculative_config.method, self.runner.drafter = drafter
            # the core asks for the drafts of all methods but sam, whose drafts come with each step's output
            self.engine.engine_core.engine_core.use_spec_decode = drafter[0] != "sam"
            if self.runner.async_drafts:
                self.runner.async_drafts.begin = self._timed("draft_s", self.runner.async_drafts.begin)
        width = max(len(p) + len(a) for p, a in answers) + self.k + 2
        recorded = np.zeros((len(answers), width), np.int64)
        for row, (prompt, answer) in zip(recorded, answers, strict=True):
            row[: len(prompt) + len(answer)] = [*prompt, *answer]
        self._recorded = torch.from_numpy(recorded).to(self.runner.device)
        for i, (prompt, answer) in enumerate(answers):
            sampling = SamplingParams(
                temperature=temperature,
                seed=i if self.seeded else None,
                max_tokens=len(answer),
                ignore_eos=True,
                detokenize=False,
            )
            self.engine.add_request(f"{i}-{self._runs}", {"prompt_token_ids": list(prompt)}, sampling)
        self._runs += 1
        total = sum(len(a) for _, a in answers)
        steps: list[dict[str, Any]] = []
        done: dict[int, list[int]] = {}
        lengths: dict[str, int] = {}
        while self.engine.has_unfinished_requests():
            self._now = {"running": 0, "rows": 0, "drafted": 0, "context": 0, "prefill": True}
            self._now |= {"sample_s": 0.0, "draft_s": 0.0}
            start = self.clock()
            outputs = self.engine.step()
            self._now["s"] = self.clock() - start
            before = sum(lengths.values())
            for output in outputs:
                tokens = output.outputs[0].token_ids
                lengths[output.request_id] = len(tokens)
                if output.finished:
                    done[int(output.request_id.split("-")[0])] = list(tokens)
            emitted = sum(lengths.values())
            steps.append({"emitted": 0, "gaining": 0, **self._now})
            # an asynchronous engine has launched a step before it returns what the one before has computed
            steps[-2 if self.asynchronous and len(steps) > 1 else -1] |= {
                "emitted": emitted - before,
                "gaining": len(outputs),
            }
            progress(emitted, total)
        self._recorded = None
        return steps, [i for i, (_, answer) in enumerate(answers) if done.get(i) != list(answer)]
