# SPDX-License-Identifier: Apache-2.0
"""Counts calls of operators, and raises the error of those that the stand-in does not have."""

import functools
from collections import Counter

from . import graphs, meter

CALLS: Counter[str] = Counter()
"""Calls by operator name in this process, replays of graphs included; tests read it through collective_rpc."""


def counted(op):
    metered = functools.partial(meter.run, op) if meter.METERED else op

    @functools.wraps(op)
    def wrapped(*args, **kwargs):
        if graphs.takes(wrapped, args, kwargs):
            return None
        CALLS[op.__name__] += 1
        return graphs.kernel(wrapped, metered, args, kwargs)

    return wrapped


def missing(name):
    """An operator that can be looked up but not called, because modules that do not run here name it on import."""

    def raises(*args, **kwargs):
        raise NotImplementedError(f"torch_npu.{name} is not in the stand-in, see testing/README.md")

    return raises
