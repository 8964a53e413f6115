# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's CPU backend schedule asynchronously, so that the code of vLLM's own runner is executed.

The backend switches asynchronous scheduling off (platforms/cpu.py), and its streams do their work at once: nothing
overlaps, and no race can show.
"""

import contextlib


def allow():
    """Call it before the engine's configuration is made."""
    from vllm.platforms import cpu
    from vllm.v1.worker import cpu_model_runner

    allow_in_configuration(cpu)
    allow_in_runner(cpu_model_runner)


def allow_in_configuration(cpu):
    """Of the module vllm.platforms.cpu."""
    check = cpu.CpuPlatform.check_and_update_config

    def keep_asynchronous(vllm_config):
        asynchronous = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous

    cpu.CpuPlatform.check_and_update_config = staticmethod(keep_asynchronous)


def allow_in_runner(cpu_model_runner):
    """Of the module vllm.v1.worker.cpu_model_runner."""
    import torch
    from vllm.v1.worker.cpu import shm  # replaces torch's streams and events

    cpu_model_runner._torch_cuda_wrapper = contextlib.nullcontext
    shm._EventPlaceholder.query = lambda event: True
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
