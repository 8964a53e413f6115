# SPDX-License-Identifier: Apache-2.0
"""Integration with vLLM and vllm-ascend (`vllm`), verl (`verl`), and code for both (`hooks`, `routing`).

Patches and plugins call these modules, which read the engines' own objects. The rest of sam_core imports none of them.
"""
