# SPDX-License-Identifier: Apache-2.0
"""Makes kernels several times as fast in Triton's interpreter, which repeats checks, and patches and restores Triton's
language for processes that also compile."""

import functools
import math
from dataclasses import replace

import numpy as np
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
    language.rand = uniform
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
    """Skip the checks if types or shapes are equal, if an operand is a number that fits the other one's type, and for
    address offsets."""
    check, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    bound = (1 << 31) - 1
    numbers = {"uint32": ((int,), 0, (1 << 32) - 1)}
    numbers |= dict.fromkeys(("int32", "int64"), ((int,), -bound, bound))
    numbers |= dict.fromkeys(("fp32", "fp64"), ((int, float), -bound, bound))

    def fits(number, name):
        types, least, most = numbers.get(name, ((), 0, 0))
        return type(number) in types and least <= number <= most

    def checked(self, lhs, rhs, *args, **kwargs):
        left, right = (getattr(getattr(each, "dtype", None), "name", None) for each in (lhs, rhs))
        if right is None and fits(rhs, left):
            rhs, right = self.scalar_constant(rhs, dtype=lhs.dtype), left
        elif left is None and fits(lhs, right):
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


def uniform(seed, offset):
    """Compute the numbers of `language.rand(seed, offset)` with NumPy. The interpreter takes more than 1 ms for the 10
    rounds of Philox.

    seed: an integer; offset: an integer or a block of integers.
    """
    words = offset.handle.data
    words = words.view(f"u{words.itemsize}").astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    key = seed.handle.data.astype(np.int64).view(np.uint64)
    counters, keys = (words & low, words >> half, words & 0, words & 0), (key & low, key >> half)
    for _ in range(10):
        a, b = counters[0] * np.uint64(0xD2511F53), counters[2] * np.uint64(0xCD9E8D57)
        counters = b >> half ^ counters[1] ^ keys[0], b & low, a >> half ^ counters[3] ^ keys[1], a & low
        keys = keys[0] + np.uint64(0x9E3779B9) & low, keys[1] + np.uint64(0xBB67AE85) & low
    random = counters[0].astype(np.uint32).view(np.int32)
    numbers = np.where(random < 0, -random - 1, random).astype(np.float32) * np.float32(4.6566127342e-10)
    handle = interpreter.TensorHandle(numbers, language.float32)
    return language.tensor(handle, offset.type.with_element_ty(language.float32))
