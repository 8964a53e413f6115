# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's CPU backend schedule asynchronously, so that the code of vLLM's own runner is executed.

The backend disables asynchronous scheduling (platforms/cpu.py). Its streams execute work immediately, so nothing
overlaps and no race can occur.
"""

import contextlib


def allow(put=setattr):
    """Allow asynchronous scheduling. Call this before the engine's configuration is created. put: replaces setattr."""
    from vllm.platforms import cpu
    from vllm.v1.worker.cpu import shm  # noqa: F401  (first: the runner's modules import functions that it replaces)

    from vllm.v1.worker import cpu_model_runner  # isort: skip

    allow_in_configuration(cpu, put)
    allow_in_runner(cpu_model_runner, put)


def allow_in_configuration(cpu, put=setattr):
    """Allow asynchronous scheduling in the module vllm.platforms.cpu."""
    check = cpu.CpuPlatform.check_and_update_config

    def keep_asynchronous(vllm_config):
        asynchronous = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous

    put(cpu.CpuPlatform, "check_and_update_config", staticmethod(keep_asynchronous))


def allow_in_runner(cpu_model_runner, put=setattr):
    """Allow asynchronous scheduling in the module vllm.v1.worker.cpu_model_runner."""
    import torch
    from vllm.v1.worker.cpu import shm  # replaces torch's streams and events

    put(cpu_model_runner, "_torch_cuda_wrapper", contextlib.nullcontext)
    put(shm._EventPlaceholder, "query", lambda event: True)
    put(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
