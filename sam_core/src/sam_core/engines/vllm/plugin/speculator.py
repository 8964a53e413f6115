# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's second runner build the drafter of method sam."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from sam_core.engines.hooks import rebind
from sam_core.engines.vllm.config import has_sam


@functools.cache
def register_speculator() -> None:
    """Let runners build the drafter for a configuration with method sam."""
    try:
        from vllm.v1.worker.gpu import spec_decode
    except ImportError:
        return  # a vLLM without the second runner: `front` refuses sam by its hooks

    def with_sam(init: Callable[..., Any]) -> Callable[..., Any]:
        def init_speculator(vllm_config: Any, device: Any, *args: Any) -> Any:
            if not has_sam(vllm_config):
                return init(vllm_config, device, *args)
            from sam_core.engines.vllm.plugin import worker

            return worker.init_speculator(vllm_config, device, lambda config: init(config, device, *args))

        return init_speculator

    rebind(spec_decode, "init_speculator", with_sam)
    if runner := sys.modules.get("vllm.v1.worker.gpu.model_runner"):  # it has imported the name
        runner.__dict__["init_speculator"] = spec_decode.init_speculator
