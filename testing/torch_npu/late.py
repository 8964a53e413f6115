# SPDX-License-Identifier: Apache-2.0
"""Copies of side streams. They are made only when the host or another stream waits for them, the latest moment that a
device may choose.

So a value that is read before its event is still missing, and a source that was overwritten too soon is copied with
its new contents. All other work is done at once.
"""

import contextlib
import threading
import weakref
from collections import deque

import torch

_LOCK = threading.RLock()
_CURRENT = threading.local()
_QUEUES = weakref.WeakSet()


class Queue:
    """The copies of a stream: `queued` so far, of which `done` have happened."""

    def __init__(self):
        self.copies, self.queued, self.done = deque(), 0, 0
        _QUEUES.add(self)

    def run(self, until):
        with (
            _LOCK,
            torch.inference_mode(),
            torch._C.DisableTorchFunction(),
            torch._C._DisableTorchDispatch(),
        ):
            while self.done < until:
                destination, source = self.copies.popleft()
                destination.copy_(source)
                self.done += 1


@contextlib.contextmanager
def stream(queue):
    """Within this context, non-blocking copies go to this queue; None: they are made at once."""
    before, _CURRENT.queue = current(), queue
    try:
        yield
    finally:
        _CURRENT.queue = before


def current():
    return getattr(_CURRENT, "queue", None)


def copy(destination, source):
    """Queue destination.copy_(source)."""
    queue = current()
    with _LOCK:
        queue.copies.append((destination, source))
        queue.queued += 1


def run_all():
    for queue in list(_QUEUES):
        queue.run(queue.queued)


def is_late(func, args, kwargs):
    """Return whether this call of torch is a copy that a side stream makes."""
    if current() is None or func not in (torch.Tensor.to, torch.Tensor.copy_):
        return False
    return kwargs.get("non_blocking", False) or any(arg is True for arg in args[1:])
