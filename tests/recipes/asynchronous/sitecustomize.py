# SPDX-License-Identifier: Apache-2.0
"""With this folder and tests/common on PYTHONPATH, vLLM's CPU backend can schedule asynchronously."""

import importlib.util
import sys

import asynchronous_cpu

AFTER = {
    "vllm.platforms.cpu": asynchronous_cpu.allow_in_configuration,
    "vllm.v1.worker.cpu_model_runner": asynchronous_cpu.allow_in_runner,
}


class Finder:
    """Import finder that calls the function in AFTER once its module has been executed."""

    def find_spec(self, name, path, target=None):
        if after := AFTER.pop(name, None):
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), after(module))
            return spec


sys.meta_path.insert(0, Finder())
