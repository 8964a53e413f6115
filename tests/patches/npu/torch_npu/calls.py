# SPDX-License-Identifier: Apache-2.0
"""Which operators were called, and what those say that the stand-in does not have."""

import functools
from collections import Counter

CALLS: Counter[str] = Counter()
"""Calls by operator name in this process; tests read it in the worker through collective_rpc."""


def counted(op):
    @functools.wraps(op)
    def wrapped(*args, **kwargs):
        CALLS[op.__name__] += 1
        return op(*args, **kwargs)

    return wrapped


def missing(name):
    """An operator that can be looked up but not called, because modules that do not run here name it on import."""

    def raises(*args, **kwargs):
        raise NotImplementedError(f"torch_npu.{name} is not in the stand-in, see tests/patches/npu")

    return raises
