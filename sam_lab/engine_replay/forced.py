# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine in this process, whose next tokens are forced to recorded answers."""

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

FORCED = 1e4
SHARED = {"load_format": "one_copy", "gpu_memory_utilization": 0.01}
"""On CUDA, engines share one copy of the weights. vLLM needs little free memory, as the size of the cache is given.
Other platforms change weights after loading, so engines cannot share them."""


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


class Forced:
    """An engine whose next tokens are forced; a subclass hooks into its model runner.

    Args:
        model: folder with a config.json.
        speculative: vLLM's speculative_config, or None.
        asynchronous: whether it plans a step while the previous one runs.
        graphs: vLLM's cudagraph_mode. The model is not compiled.
        settings: further EngineArgs.
    """

    def __init__(
        self, model: Path, speculative: dict[str, Any] | None, asynchronous: bool, graphs: str, **settings: Any
    ) -> None:
        settings = {"load_format": "dummy", "max_num_batched_tokens": 2048} | settings
        arguments = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            seed=0,
            enforce_eager=graphs == "NONE",
            compilation_config={"mode": "NONE", "cudagraph_mode": graphs},
            speculative_config=speculative,
            disable_log_stats=True,
            async_scheduling=asynchronous,
            **settings | (SHARED if current_platform.is_cuda() else {}),
        )
        self.engine = LLMEngine.from_engine_args(arguments)
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner
        self.asynchronous = self.engine.vllm_config.scheduler_config.async_scheduling
        self.graphs = self.engine.vllm_config.compilation_config.cudagraph_mode
        self.k = speculative["num_speculative_tokens"] if speculative else 0
        self.sam: dict[str, Any] = (speculative or {}).get("sam", {})
        self.seeded = self.sam.get("verify") == "seeded"
        self._on_cpu = self.runner.device.type == "cpu"
        self.clock: Callable[[], float] = time.process_time if self._on_cpu else time.perf_counter
        self._recorded: torch.Tensor | None = None
        self._step: dict[str, Any] = {}
        self._runs = 0

    def _copied(self, array: torch.Tensor) -> torch.Tensor:
        """Return a copy on the runner's device. The host does not wait, so that hidden work stays hidden."""
        return array if self._on_cpu else array.pin_memory().to(self.runner.device, non_blocking=True)

    def _force(self, logits: torch.Tensor, owners: torch.Tensor, positions: torch.Tensor) -> None:
        """Raise the recorded next token's logit.

        Args:
            logits: float [R, V], changed in place.
            owners, positions: int [R], each row's answer, and the position of the token that it reads.
        """
        assert self._recorded is not None
        following = positions.clamp(max=self._recorded.shape[1] - 2) + 1
        logits.scatter_(1, self._recorded[owners, following][:, None], FORCED)

    def run(
        self,
        answers: Sequence[tuple[Sequence[int], Sequence[int]]],
        temperature: float = 0.0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[list[dict[str, Any]], list[int]]:
        """Generate all answers at once, as one replica of a rollout does.

        Args:
            answers: prompt and recorded answer of each request.
            temperature: the sampler's; the forced token is chosen at any temperature.

        Returns:
            Each engine step: running requests, computed rows, draft tokens among them, context (tokens of its requests
            before it), emitted tokens, the number of requests that got any, s (seconds of the clock), whether it read
            a prompt, and what the subclass adds. And the requests whose answer was not the recorded one.
        """
        self.engine.reset_prefix_cache()  # of the prompts that another arm has read
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
            self._step = {"running": 0, "rows": 0, "drafted": 0, "context": 0, "prefill": True}
            start = self.clock()
            outputs = self.engine.step()
            self._step["s"] = self.clock() - start
            before = sum(lengths.values())
            for output in outputs:
                tokens = output.outputs[0].token_ids
                lengths[output.request_id] = len(tokens)
                if output.finished:
                    done[int(output.request_id.split("-")[0])] = list(tokens)
            emitted = sum(lengths.values())
            steps.append({"emitted": 0, "gaining": 0, **self._step})
            # an asynchronous engine has launched a step before it returns what the one before has computed
            steps[-2 if self.asynchronous and len(steps) > 1 else -1] |= {
                "emitted": emitted - before,
                "gaining": len(outputs),
            }
            progress(emitted, total)
        self._recorded = None
        return steps, [i for i, (_, answer) in enumerate(answers) if done.get(i) != list(answer)]
