# SPDX-License-Identifier: Apache-2.0
"""For vLLM and vllm-ascend: configuration, excluded requests, sampling, routing, metrics, the log of engine steps."""
