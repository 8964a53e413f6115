# SPDX-License-Identifier: Apache-2.0
"""Makes kernels several times as fast in Triton's interpreter, which repeats checks, and patches and restores Triton's
language for processes that also compile."""

import functools
import math
from dataclasses import replace

from triton import language
from triton.runtime import interpreter


class Kept:
    def restore(self):
        """Do nothing: the language stays patched, because nothing is compiled."""


def speed_up():
    patch, patched, builder = interpreter._patch_lang, set(), interpreter.interpreter_builder
    execute, find, numpy_types = interpreter.GridExecutor.__call__, interpreter._get_np_dtype, {}

    def patch_once(function):
        """Patch each module once; the interpreter patches at each call of a kernel and of its functions."""
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return Kept()

    def execute_on_one_piece(*args, **kwargs):
        """Run a kernel on one piece of Python's stack. Python maps a new piece when one is full, and unmaps it at the
        return; a kernel whose operations begin at the end of a piece would spend 40 % of its time on this. A frame
        of 80 KB gets a piece of 128 KB, with room for the operations."""
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
    language.core._unwrap_if_constexpr = unwrap_what_is_wrapped(language.core._unwrap_if_constexpr)
    interpreter.TensorHandle.__post_init__ = lambda handle: None  # checks sizes
    ask_of_operands_that_differ(language.semantic.TritonSemantic)
    builder.options = replace(builder.options, sanitize_overflow=False)  # as in compiled kernels


def once_of_each(init):
    """Return the `init` of a block type with a cache: block types of one element type and shape are set up once."""
    made, shapes = {}, {}

    def make(block, element, shape):
        key = element.name, *map(language.core._unwrap_if_constexpr, shape)
        if key not in made:
            init(block, element, shape)
            block.shape = shapes.setdefault(key[1:], block.shape)
            made[key] = vars(block)
        vars(block).update(made[key])

    return make


def unwrap_what_is_wrapped(unwrap):
    core = language.core
    plain = {core.tensor, core.dtype, core.block_type, core.pointer_type, int, float, bool, str, type(None)}
    return lambda value: value if type(value) in plain else unwrap(value)


def ask_of_operands_that_differ(semantic):
    """Skip the checks of types or shapes that are equal, of a tensor with a small number, and of address offsets."""
    check, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    numbers = {name: (int,) if name.startswith("int") else (int, float) for name in ("int32", "int64", "fp32", "fp64")}

    def checked(self, lhs, rhs, *args, **kwargs):
        left, right = (getattr(getattr(each, "dtype", None), "name", None) for each in (lhs, rhs))
        if left in numbers and right is None and type(rhs) in numbers[left] and abs(rhs) < 1 << 31:
            rhs, right = self.scalar_constant(rhs, dtype=lhs.dtype), left
        elif right in numbers and left is None and type(lhs) in numbers[right] and abs(lhs) < 1 << 31:
            lhs, left = self.scalar_constant(lhs, dtype=rhs.dtype), right
        points = args[:1] == (True,) and left and left.startswith("pointer") and right in ("int32", "int64")
        if points or left == right and left in numbers:
            return self.broadcast_impl_value(lhs, rhs)
        return check(self, lhs, rhs, *args, **kwargs)

    def broadcast_shapes_that_differ(self, lhs, rhs):
        if getattr(lhs.type, "shape", None) is getattr(rhs.type, "shape", None):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value = checked, broadcast_shapes_that_differ


def make_tensor(tensor, handle, type):
    """Initialise a tensor as Triton does, but share one shape object between tensors of equal shape."""
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    tensor.shape, tensor.numel = shape_and_size((*type.shape,) if type.is_block() else ())


@functools.cache
def shape_and_size(shape):
    return language.tuple([language.constexpr(n) for n in shape]), language.constexpr(math.prod(shape))
