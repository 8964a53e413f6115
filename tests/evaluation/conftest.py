# SPDX-License-Identifier: Apache-2.0
"""Engines on this machine's CPU: vLLM's own platform, not that of vllm-ascend, which is installed as well."""

import os

os.environ["VLLM_PLUGINS"] = ""

import forked  # noqa: F401
import waits  # noqa: F401
