# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's CPU backend schedule asynchronously, so that the code of vLLM's own runner is executed.

The backend switches asynchronous scheduling off (platforms/cpu.py), and its streams do their work at once: nothing
overlaps, and no race can show.
"""

import contextlib


def allow():
    """Call it before the engine's configuration is made."""
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker import cpu_model_runner
    from vllm.v1.worker.cpu import shm  # replaces torch's streams and events

    check = CpuPlatform.check_and_update_config

    def keep_asynchronous(vllm_config):
        asynchronous = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous

    CpuPlatform.check_and_update_config = staticmethod(keep_asynchronous)
    cpu_model_runner._torch_cuda_wrapper = contextlib.nullcontext
    shm._EventPlaceholder.query = lambda event: True
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
