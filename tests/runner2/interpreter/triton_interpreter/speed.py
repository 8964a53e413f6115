# SPDX-License-Identifier: Apache-2.0
"""Makes kernels several times as fast in Triton's interpreter, which is made to be exact in a process that also
compiles."""

import functools
import math
from dataclasses import replace

from triton import language
from triton.runtime import interpreter


class Kept:
    def restore(self):
        """The language stays patched, as nothing is compiled."""


def speed_up():
    patch, patched, builder = interpreter._patch_lang, set(), interpreter.interpreter_builder
    execute, find, numpy_types = interpreter.GridExecutor.__call__, interpreter._get_np_dtype, {}

    def patch_once(function):
        """The interpreter does it at every call of a kernel, and of each function that the kernel calls."""
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return Kept()

    def execute_on_one_piece(*args, **kwargs):
        """Python maps a piece of its stack where another ends, and unmaps it at the return. A kernel whose operations
        begin at an end would spend 40 % of its time there. A frame of 80 KB gets a piece of 128 KB, with room for
        them."""
        execute(*args, **kwargs)

    def numpy_type(type):
        if type.name not in numpy_types:
            numpy_types[type.name] = find(type)
        return numpy_types[type.name]

    execute_on_one_piece.__code__ = execute_on_one_piece.__code__.replace(co_stacksize=10_000)
    interpreter.GridExecutor.__call__ = execute_on_one_piece
    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = numpy_type
    language.tensor.__init__ = make_tensor
    language.core.block_type.__init__ = once_of_each(language.core.block_type.__init__)
    builder.options = replace(builder.options, sanitize_overflow=False)  # as in compiled kernels


def once_of_each(init):
    """`init` of a block type, whose work is done once for all of an element type and a shape."""
    made = {}

    def make(block, element, shape):
        key = element.name, *map(language.core._unwrap_if_constexpr, shape)
        if key not in made:
            init(block, element, shape)
            made[key] = vars(block)
        vars(block).update(made[key])

    return make


def make_tensor(tensor, handle, type):
    """As Triton's, with one shape for all tensors of that shape."""
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    tensor.shape, tensor.numel = shape_and_size((*type.shape,) if type.is_block() else ())


@functools.cache
def shape_and_size(shape):
    return language.tuple([language.constexpr(n) for n in shape]), language.constexpr(math.prod(shape))
