# SPDX-License-Identifier: Apache-2.0
"""Which operators were called, and what those say that the stand-in does not have."""

import functools
import time
from collections import Counter

import torch

from . import graphs, meter

CALLS: Counter[str] = Counter()
"""Calls by operator name in this process, replays of graphs included; tests read it through collective_rpc."""
SECONDS = [0.0]
"""Time spent inside the stand-in's operators in this process."""
DISPATCHED = [0]
"""Torch calls outside these operators that went through the stand-in's device in this process."""


def counted(op):
    metered = functools.partial(meter.run, op) if meter.METERED else op

    @functools.wraps(op)
    def wrapped(*args, **kwargs):
        if graphs.takes(wrapped, args, kwargs):
            return None
        CALLS[op.__name__] += 1
        dispatched, before, start = DISPATCHED[0], SECONDS[0], time.perf_counter()
        try:
            return graphs.kernel(wrapped, metered, args, kwargs)
        finally:
            SECONDS[0] = before + time.perf_counter() - start  # operators that this one called are in it
            DISPATCHED[0] = dispatched

    return wrapped


def dispatch_seconds():
    """How much longer a torch call takes because it goes through the stand-in's device."""
    number, count, x = DISPATCHED[0], 2000, torch.ones(8)

    def seconds():
        start = time.perf_counter()
        for _ in range(count):
            torch.add(x, x)
        return (time.perf_counter() - start) / count

    through = min(seconds() for _ in range(5))
    DISPATCHED[0] = number
    with torch._C.DisableTorchFunction():
        return max(0.0, through - min(seconds() for _ in range(5)))


def missing(name):
    """An operator that can be looked up but not called, because modules that do not run here name it on import."""

    def raises(*args, **kwargs):
        raise NotImplementedError(f"torch_npu.{name} is not in the stand-in, see tests/patches/npu")

    return raises
