# SPDX-License-Identifier: Apache-2.0
"""Counts calls of operators, and raises the error of those that the stand-in does not have."""

import functools
import statistics
import time
from collections import Counter

import torch

from . import graphs, meter

CALLS: Counter[str] = Counter()
"""Calls by operator name in this process, replays of graphs included; tests read it through collective_rpc."""
SECONDS = [0.0]
"""Time spent inside the stand-in's operators in this process."""
DELAY = [0.0]
"""Time that the stand-in's device took to pass on torch calls outside these operators; `delay_factor` times that is its
whole cost."""


def counted(op):
    metered = functools.partial(meter.run, op) if meter.METERED else op

    @functools.wraps(op)
    def wrapped(*args, **kwargs):
        if graphs.takes(wrapped, args, kwargs):
            return None
        CALLS[op.__name__] += 1
        delay, before, start = DELAY[0], SECONDS[0], time.perf_counter()
        try:
            return graphs.kernel(wrapped, metered, args, kwargs)
        finally:
            SECONDS[0] = before + time.perf_counter() - start  # operators that this one called are in it
            DELAY[0] = delay

    return wrapped


def delay_factor():
    """How much longer a torch call takes through the stand-in's device, as a multiple of its DELAY.

    A ratio of two times of the same moment, as the time of a call changes with what else the machine does.
    """
    delay, count, x, factors = DELAY[0], 1000, torch.ones(8), []

    def seconds():
        start = time.perf_counter()
        for _ in range(count):
            torch.add(x, x)
        return time.perf_counter() - start

    for _ in range(15):
        before, through = DELAY[0], seconds()
        delayed = DELAY[0] - before
        with torch._C.DisableTorchFunction():
            factors.append((through - seconds()) / delayed)
    DELAY[0] = delay
    return max(1.0, statistics.median(factors))


def missing(name):
    """An operator that can be looked up but not called, because modules that do not run here name it on import."""

    def raises(*args, **kwargs):
        raise NotImplementedError(f"torch_npu.{name} is not in the stand-in, see testing/README.md")

    return raises
