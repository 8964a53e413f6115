# SPDX-License-Identifier: Apache-2.0
"""Stand-in for torch_npu: vllm-ascend's own platform, worker, model runner and sampler run on the CPU. See
../README.md."""

from . import device, distributed, experts, npu, placeholders  # noqa: F401  importing them is what registers the device
from .attention import *  # noqa: F403
from .calls import CALLS, DELAY, SECONDS, delay_factor, missing  # noqa: F401
from .experts import *  # noqa: F403
from .ops import *  # noqa: F403

placeholders.install()
experts.install()


def __getattr__(name):
    if name.startswith(("npu_", "_npu_")):
        return missing(name)
    raise AttributeError(f"the stand-in for torch_npu has no {name}")
