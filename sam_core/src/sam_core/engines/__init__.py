# SPDX-License-Identifier: Apache-2.0
"""All that this project knows of engines outside its patches.

Of vLLM and vllm-ascend (`vllm`), of verl (`verl`), of both (`routing`).

The modules read the engines' own objects and are called by the patches. The rest of sam_core imports none of them.
"""
