# SPDX-License-Identifier: Apache-2.0
"""Makes kernels three times as fast in Triton's interpreter, which is made to be exact in a process that also
compiles."""

from dataclasses import replace

from triton.runtime import interpreter


class Kept:
    def restore(self):
        """The language stays patched, as nothing is compiled."""


def speed_up():
    patch, patched, builder = interpreter._patch_lang, set(), interpreter.interpreter_builder

    def patch_once(function):
        """The interpreter does it at every call of a kernel, and of each function that the kernel calls."""
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return Kept()

    interpreter._patch_lang = patch_once
    builder.options = replace(builder.options, sanitize_overflow=False)  # as in compiled kernels
