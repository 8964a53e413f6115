# SPDX-License-Identifier: Apache-2.0
"""An engine of the patched vLLM for the accuracy checks; it also counts drafts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_rl.errors import UserError

COUNTERS = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}


@dataclass
class GeneratedAnswer:
    """An answer: token ids, their log-probabilities if requested, and text.

    finish: reason for its end, None during generation; steps: number of tokens from each engine step.
    """

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    steps: list[int] = field(default_factory=list)


class Engine:
    """vLLM's LLMEngine in a separate process, which ends with the `with` block.

    settings: arguments of EngineArgs; k: drafted tokens per step, 0: no speculation; sam: options of
    speculative_config.sam. `sam["verify"]` also applies without speculation, so that both arms can sample by seed and
    position. Raises UserError if the engine does not start.
    """

    def __init__(self, settings: Mapping[str, Any], k: int, sam: Mapping[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # 0.11 verifies no drafts without it
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # one engine after another in this process
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # only the first runner has host-side drafters
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        settings = {"enforce_eager": True, "disable_log_stats": False, **settings}
        if k:
            settings["speculative_config"] = {"method": "sam", "num_speculative_tokens": k, "sam": dict(sam)}
        elif "verify" in sam:
            settings["additional_config"] = {**settings.get("additional_config", {}), "sam_verify": sam["verify"]}
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**settings))
        except (TypeError, ValueError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the engine did not start: {reason}") from error
        self._requests = 0
        self._before = self._totals()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.engine_core.shutdown()

    def answers(self, requests: list[tuple[list[int], dict[str, Any]]]) -> Iterator[tuple[int, GeneratedAnswer]]:
        """Generate answers to all requests, batched by the engine.

        requests: (token ids of the prompt, arguments of SamplingParams) for each request.
        Yields (index of the request, GeneratedAnswer) as answers end. Raises UserError if the engine dies.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        self._before = self._totals()
        numbers, going = {}, {}
        for number, (prompt, sampling) in enumerate(requests):
            name = str(self._requests)
            self._requests += 1
            numbers[name], going[name] = number, GeneratedAnswer()
            params = SamplingParams(output_kind=RequestOutputKind.DELTA, **sampling)
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        try:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    answer, (new,) = going[output.request_id], output.outputs
                    answer.tokens += new.token_ids
                    answer.text += new.text
                    for token, entry in zip(new.token_ids, new.logprobs or (), strict=False):
                        answer.log_probs.append(entry[token].logprob)
                    if new.token_ids:
                        answer.steps.append(len(new.token_ids))
                    if output.finished:
                        answer.finish = new.finish_reason
                        yield numbers[output.request_id], going.pop(output.request_id)
        except EngineDeadError:
            going.clear()
            raise UserError("the engine died: see its messages above") from None
        finally:
            if going:  # the caller has stopped early
                self._engine.abort_request(list(going))

    def counted(self) -> dict[str, int]:
        """Draft tokens verified and accepted since the latest call of `answers`; 0 without speculation."""
        now = self._totals()
        return {name: now[name] - self._before[name] for name in now}

    def _totals(self) -> dict[str, int]:
        values = {metric.name: int(metric.value) for metric in self._engine.get_metrics() if metric.name in COUNTERS}
        return {short: values.get(name, 0) for name, short in COUNTERS.items()}


def device() -> str:
    """The engine's device: cpu, cuda, npu ..."""
    from vllm.platforms import current_platform

    return current_platform.device_type


def default_dtype() -> str:
    """bfloat16, or float32 on a CPU without bfloat16 instructions, where bfloat16 would be 30 times as slow."""
    import torch

    if torch.accelerator.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "bfloat16"
    print("dtype float32: this CPU has no instructions for bfloat16", file=sys.stderr, flush=True)
    return "float32"


def add_engine_arguments(parser: argparse.ArgumentParser, batch: int, dtypes: Iterable[str] | None = None) -> None:
    """Add the engine's arguments, which `settings` reads. batch: default of --batch; dtypes: allowed dtypes."""
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--tensor-parallel", "--tp", type=int, default=1, help="ranks of the engine (default 1)")
    dtype = "default bfloat16, float32 on a CPU without instructions for it"
    parser.add_argument("--dtype", choices=dtypes, help=dtype)
    parser.add_argument("--batch", type=int, default=batch, help=f"requests at a time (default {batch})")
    parser.add_argument("--engine", type=json_object, default={}, help="further engine arguments, as JSON")


def at_least(args: argparse.Namespace, **minimums: int) -> None:
    """Raise UserError if a given argument is below its minimum."""
    for name, minimum in minimums.items():
        value = getattr(args, name)
        if value is not None and value < minimum:
            raise UserError(f"--{name.replace('_', '-')} must be at least {minimum}, got {value}")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of EngineArgs."""
    arguments = {"model": args.model, "tensor_parallel_size": args.tensor_parallel}
    return arguments | {"dtype": args.dtype or default_dtype(), "max_num_seqs": args.batch} | args.engine


def json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def load_tokenizer(model: str) -> Any:
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise UserError(f"there is no folder {model}: name the folder of a model in Hugging Face format")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UserError(f"{model} has no tokenizer: {str(error).splitlines()[0]}") from None
