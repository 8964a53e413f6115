# SPDX-License-Identifier: Apache-2.0
"""If imported, vLLM's processes sleep while they wait for each other. Otherwise each occupies a core."""

import time

from vllm.distributed.device_communicators import shm_broadcast

shm_broadcast.sched_yield = lambda: time.sleep(0.0002)
