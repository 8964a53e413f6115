# SPDX-License-Identifier: Apache-2.0
"""The part of the backend that would compile kernels."""

from triton.backends.compiler import BaseBackend


class InterpreterBackend(BaseBackend):
    binary_ext = "none"

    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreter"

    def parse_options(self, options):
        raise NotImplementedError("kernels are interpreted only: set TRITON_INTERPRET=1")

    add_stages = load_dialects = parse_options

    def get_module_map(self):
        return {}
