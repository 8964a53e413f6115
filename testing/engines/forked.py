# SPDX-License-Identifier: Apache-2.0
"""If imported, vLLM forks an engine's processes, which inherit this process's imports: a start takes 4 s instead of 40.
The processes sleep while they wait for each other. Otherwise, each would keep a core busy.

vLLM also forks on GPUs; only its CPU platform requests spawning.
"""

import multiprocessing
import os
import time

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling vLLM's helpers takes longer than all that a test runs
os.sched_yield = lambda: time.sleep(0.0005)  # vLLM calls it in its waiting loops

_get_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get_context("fork" if method == "spawn" else method)
