# SPDX-License-Identifier: Apache-2.0
"""The driver of the backend, which is active only if kernels are interpreted."""

import os

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpreterDriver(DriverBase):
    def __init__(self):
        pass

    @classmethod
    def is_active(cls):
        return os.environ.get("TRITON_INTERPRET") == "1"

    def get_current_target(self):
        return GPUTarget("cpu", 0, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_current_device(self):
        return 0

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_benchmarker(self):
        raise NotImplementedError("an interpreter is not timed")
