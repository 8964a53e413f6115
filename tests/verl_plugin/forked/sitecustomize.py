# SPDX-License-Identifier: Apache-2.0
"""With this folder and testing/engines on PYTHONPATH, an engine forks its worker from its own process, which has
already imported vLLM."""

import sys

if "--multiprocessing-fork" in sys.orig_argv:
    import forked  # noqa: F401
