# SPDX-License-Identifier: Apache-2.0
"""Counts calls of operators, and raises the error of those that the stand-in does not have."""

import functools
from collections import Counter

import torch

from . import graphs, meter

CALLS: Counter[str] = Counter()
"""Calls by operator name in this process, replays of graphs included; tests read it through collective_rpc."""


def unredirected(op, *args, **kwargs):
    """Call an operator, whose calls of torch name no device (device.NpuOnCpu)."""
    with torch._C.DisableTorchFunction():
        return op(*args, **kwargs)


def counted(op):
    run = functools.partial(meter.run if meter.METERED else unredirected, op)

    @functools.wraps(op)
    def wrapped(*args, **kwargs):
        if graphs.takes(wrapped, args, kwargs):
            return None
        CALLS[op.__name__] += 1
        return graphs.kernel(wrapped, run, args, kwargs)

    return wrapped


def missing(name):
    """An operator that can be looked up but not called, because modules that do not run here name it on import."""

    def raises(*args, **kwargs):
        raise NotImplementedError(f"torch_npu.{name} is not in the stand-in, see testing/README.md")

    return raises
