# SPDX-License-Identifier: Apache-2.0
"""Import it, and vLLM's processes sleep while they wait for each other. They would spin, one core for each that
waits."""

import time

from vllm.distributed.device_communicators import shm_broadcast

shm_broadcast.sched_yield = lambda: time.sleep(0.0002)
