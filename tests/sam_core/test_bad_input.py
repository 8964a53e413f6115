# SPDX-License-Identifier: Apache-2.0
"""Every argument that cannot be right is refused with one sentence that names it, and changes nothing."""

import array

import numpy as np
import pytest
from pool_oracle import i32, step

import sam_core
from sam_core import reference

INT64 = np.zeros(1, np.int64)
MAX = 2**31 - 1


def good():
    """Valid arguments of a step over the slots 0 and 1."""
    return {
        "slots": i32(0, 1),
        "tokens": i32(5, 6, 7),
        "counts": i32(1, 2),
        "k": 2,
        "out": np.full((2, 4), -1, np.int32),
        "lengths": i32(-1, -1),
    }


def readonly(array):
    array.flags.writeable = False
    return array


def misaligned(count):
    return np.frombuffer(bytearray(4 * count + 1), np.int32, count, offset=1)


BAD_STEP = [
    ({"slots": i32(0, 2)}, ValueError, r"slots\[1\] is 2, which is not an open slot"),
    ({"slots": i32(-1, 0)}, ValueError, r"slots\[0\] is -1, which is not an open slot"),
    ({"slots": i32(0, 9)}, ValueError, r"slots\[1\] is 9, which is not an open slot"),
    ({"slots": i32(1, 1)}, ValueError, r"slots\[1\] is 1, which stands in an earlier row too"),
    ({"slots": [0, 1]}, TypeError, "slots must be an int32 buffer, not list"),
    ({"slots": i32(0, 1).astype(np.int64)}, TypeError, "slots must hold int32, not items of format 'l' and 8 bytes"),
    ({"slots": i32(0, 1).astype(np.uint32)}, TypeError, "slots must hold int32, not items of format 'I' and 4 bytes"),
    ({"slots": i32(0, 1).astype(">i4")}, TypeError, "slots must hold int32, not items of format '>i' and 4 bytes"),
    ({"slots": b"\0\0\0\0\1\0\0\0"}, TypeError, "slots must hold int32, not items of format 'B' and 1 bytes"),
    ({"slots": i32(0, 1).reshape(2, 1)}, ValueError, "slots must have 1 dimension, not 2"),
    ({"slots": i32(0, 0, 1)[::2]}, BufferError, "slots must be contiguous in C order and aligned"),
    ({"tokens": i32(5, 6)}, ValueError, "counts add up to 3, but there are 2 tokens"),
    ({"tokens": i32(5, -6, 7)}, ValueError, r"tokens\[1\] is -6: token ids go from 0 to 2147483647"),
    ({"tokens": i32(5, 6, 7).astype(np.float32)}, TypeError, "tokens must hold int32, not items of format 'f'"),
    ({"tokens": misaligned(3)}, BufferError, "tokens must be contiguous in C order and aligned"),
    ({"counts": i32(1, -1)}, ValueError, r"counts\[1\] is -1: it must not be negative"),
    ({"counts": i32(1, 1)}, ValueError, "counts add up to 2, but there are 3 tokens"),
    ({"counts": i32(MAX, MAX)}, ValueError, "counts add up to 4294967294, but there are 3 tokens"),
    ({"counts": i32(3)}, ValueError, "counts has 1 rows, but slots has 2"),
    ({"k": -1}, ValueError, "k is -1: it must lie between 0 and 4, the width of out"),
    ({"k": 5}, ValueError, "k is 5: it must lie between 0 and 4, the width of out"),
    ({"k": 2**80}, ValueError, "k is 1208925819614629174706176: it must lie between 0 and 4, the width of out"),
    ({"k": -(2**80)}, ValueError, "k is -1208925819614629174706176: it must lie between 0 and 4"),
    ({"k": i32(0, 5)}, ValueError, "k of row 1 is 5: it must lie between 0 and 4, the width of out"),
    ({"k": i32(-2, 0)}, ValueError, "k of row 0 is -2: it must lie between 0 and 4, the width of out"),
    ({"k": i32(1)}, ValueError, "k has 1 rows, but slots has 2"),
    ({"k": INT64}, TypeError, "k must hold int32, not items of format 'l' and 8 bytes"),
    ({"k": 1.0}, TypeError, "k must be an integer or an int32 buffer, not float"),
    ({"k": None}, TypeError, "k must be an integer or an int32 buffer, not NoneType"),
    ({"out": np.zeros((3, 4), np.int32)}, ValueError, "out has 3 rows, but slots has 2"),
    ({"out": np.zeros(8, np.int32)}, ValueError, "out must have 2 dimensions, not 1"),
    ({"out": np.zeros((2, 4), np.int64)}, TypeError, "out must hold int32, not items of format 'l' and 8 bytes"),
    ({"out": np.zeros((4, 2), np.int32).T}, BufferError, "out must be contiguous in C order and aligned"),
    ({"out": readonly(np.zeros((2, 4), np.int32))}, BufferError, "out must be writable"),
    ({"lengths": readonly(i32(0, 0))}, BufferError, "lengths must be writable"),
    ({"lengths": i32(0)}, ValueError, "lengths has 1 rows, but slots has 2"),
    ({"lengths": None}, TypeError, "lengths must be an int32 buffer, not NoneType"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD_STEP, ids=lambda value: None)
def test_step_refuses(changed, error, message):
    pool = sam_core.Pool()
    for _ in range(3):
        pool.open([5, 6, 7, 5])
    pool.close(2)
    before = pool.stats()
    arguments = good() | changed
    with pytest.raises(error, match=message):
        pool.step(**arguments)
    assert pool.stats() == before and pool._validate() is None
    for name in ("out", "lengths"):
        if name not in changed:
            assert (arguments[name] == -1).all()
    pool.step(**good())
    assert pool.stats()["appended"] == 3


BAD_PROMPTS = [
    ([1, -1], ValueError, r"{}\[1\] is -1: token ids go from 0 to 2147483647"),
    ([2**31], ValueError, r"{}\[0\] is 2147483648: token ids go from 0 to 2147483647"),
    ([2**99], ValueError, r"{}\[0\] is 633825300114114700748351602688: token ids"),
    (i32(4, 5, -3), ValueError, r"{}\[2\] is -3: token ids go from 0 to 2147483647"),
    ([1, 1.0], TypeError, r"{}\[1\] must be an integer, not float"),
    (["a"], TypeError, r"{}\[0\] must be an integer, not str"),
    ("a", TypeError, r"{}\[0\] must be an integer, not str"),
    (7, TypeError, "{} must be an int32 buffer or a sequence of integers, not int"),
    (None, TypeError, "{} must be an int32 buffer or a sequence of integers, not NoneType"),
    (INT64, TypeError, "{} must hold int32, not items of format 'l' and 8 bytes"),
    (array.array("I", [1]), TypeError, "{} must hold int32, not items of format 'I' and 4 bytes"),
    (np.zeros((1, 1), np.int32), ValueError, "{} must have 1 dimension, not 2"),
    (np.zeros(4, np.int32)[::2], BufferError, "{} must be contiguous in C order and aligned"),
]


@pytest.mark.parametrize(("prompt", "error", "message"), BAD_PROMPTS, ids=lambda value: None)
def test_open_and_drop_refuse_tokens(prompt, error, message):
    pool = sam_core.Pool()
    with pytest.raises(error, match=message.format("prompt_ids")):
        pool.open(prompt)
    with pytest.raises(error, match=message.format("group")):
        pool.drop(prompt)
    assert pool.stats()["slots_open"] == 0


def test_largest_token_is_accepted():
    pool = sam_core.Pool()
    assert step(pool, [(pool.open([MAX, 0, MAX]), [])]) == [[0, MAX]]


@pytest.mark.parametrize("group", ["name", 3, b"name".decode(), bytearray(b"name"), ()])
def test_open_refuses_group(group):
    with pytest.raises(TypeError, match="it must be BY_PROMPT, bytes or None"):
        sam_core.Pool().open([1], group)


def test_close_refuses():
    pool = sam_core.Pool()
    slot = pool.open([1])
    pool.close(slot)
    for bad in (slot, -1, 5, 2**80):
        with pytest.raises(ValueError, match=f"slot is {bad}, which is not an open slot"):
            pool.close(bad)
    for bad in (None, 0.0, "0"):
        with pytest.raises(TypeError, match="slot must be an integer, not"):
            pool.close(bad)


@pytest.mark.parametrize("make", [sam_core.Pool, reference.Pool], ids=["c", "twin"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_bytes": -1}, "memory_bytes is -1: it must not be negative"),
        ({"rule": "blend"}, "rule is 'blend': this version has the rules 'newest' and 'oldest'"),
        ({"rule": ""}, "rule is '': this version has the rules 'newest' and 'oldest'"),
        ({"sources": ("request", "history")}, "'history'.*: this version has the sources 'request' and 'group'"),
        ({"sources": "request"}, "'request': this version has the sources 'request' and 'group'"),
        ({"sources": ()}, "sources is empty: name 'request', 'group' or both"),
    ],
)
def test_pool_refuses(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize("arguments", [{"memory_bytes": 1.5}, {"rule": 3}, {"sources": (3,)}, {"sources": 3}, {"x": 1}])
def test_pool_refuses_types(arguments):
    with pytest.raises(TypeError):
        sam_core.Pool(**arguments)


def test_integers_that_change_the_list_do_no_harm():
    class Sly:
        def __index__(self):
            prompt.clear()
            return 7

    pool = sam_core.Pool()
    prompt = [Sly(), 1, 2, 7]
    assert step(pool, [(pool.open(prompt), [])]) == [[1, 2, 7]]
