# SPDX-License-Identifier: Apache-2.0
"""Import it, and vLLM forks an engine's processes, which have then imported what this one has: 4 s a start instead of
40.

vLLM forks on GPUs as well; its CPU platform alone asks for spawning.
"""

import multiprocessing
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling vLLM's helpers takes longer than all that a test runs

_get_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get_context("fork" if method == "spawn" else method)
