# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH with tests/common: every process of a recipe lets vLLM's CPU backend schedule asynchronously."""

import importlib.util
import sys

import asynchronous_cpu

AFTER = {
    "vllm.platforms.cpu": asynchronous_cpu.allow_in_configuration,
    "vllm.v1.worker.cpu_model_runner": asynchronous_cpu.allow_in_runner,
}


class Finder:
    """Finds the modules of AFTER, and calls their function when they have been executed."""

    def find_spec(self, name, path, target=None):
        if after := AFTER.pop(name, None):
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), after(module))
            return spec


sys.meta_path.insert(0, Finder())
