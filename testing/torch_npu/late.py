# SPDX-License-Identifier: Apache-2.0
"""Copies that a side stream has yet to make. They happen when the host or another stream waits for them, and not
before.

That is the latest moment a device may take: a value that is read before its event is not there yet, and a source that
was overwritten too soon is copied as it is then. All other work is done at once.
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
    """Copies that do not block go to this queue, None: are made at once."""
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
    """Whether this call of torch is a copy that a side stream makes."""
    if current() is None or func not in (torch.Tensor.to, torch.Tensor.copy_):
        return False
    return kwargs.get("non_blocking", False) or any(arg is True for arg in args[1:])
