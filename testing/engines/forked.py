# SPDX-License-Identifier: Apache-2.0
"""If imported, vLLM forks an engine's processes, which inherit this process's imports: a start takes 4 s instead of 40.

vLLM also forks on GPUs; only its CPU platform requests spawning.
"""

import multiprocessing
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling vLLM's helpers takes longer than all that a test runs

_get_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get_context("fork" if method == "spawn" else method)
