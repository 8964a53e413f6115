# SPDX-License-Identifier: Apache-2.0
"""Run engines on this machine's CPU with vLLM's own platform, although vllm-ascend is installed too."""

import os

os.environ["VLLM_PLUGINS"] = ""

import forked  # noqa: F401
