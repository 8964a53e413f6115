# SPDX-License-Identifier: Apache-2.0
"""A real engine of the pinned vLLM on the CPU; its processes are forks of the tests'."""

import gc

import forked  # noqa: F401
import inspection  # noqa: F401
import llm_engine

gc.unfreeze = lambda: None  # else an engine that ends would search all that its processes were forked with for garbage


class Engine(llm_engine.Engine):
    """Has a KV cache of 256 blocks of 128 tokens; vLLM would fill a gigabyte with zeros at the start."""

    def __init__(self, model, sam=None, k=3, drafter=None, **settings):
        super().__init__(model, sam, k, drafter, **{"num_gpu_blocks_override": 256} | settings)
