# SPDX-License-Identifier: Apache-2.0
"""Stand-in for torch_npu: vllm-ascend's own platform, worker, model runner and sampler run on the CPU. See
../README.md."""

from . import attention, device, distributed, experts, npu, ops, placeholders  # noqa: F401  registers the device
from .calls import CALLS, missing  # noqa: F401

placeholders.install()
experts.install()


def __getattr__(name):
    if name.startswith(("npu_", "_npu_")):
        found = (getattr(module, name, None) for module in (attention, experts, ops))
        return next(filter(None, found), None) or missing(name)
    raise AttributeError(f"the stand-in for torch_npu has no {name}")
