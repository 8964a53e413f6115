# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH with testing/engines: the worker of a recipe's engine is a fork of the engine's process, which has
imported vLLM already."""

import sys

if "--multiprocessing-fork" in sys.orig_argv:
    import forked  # noqa: F401
