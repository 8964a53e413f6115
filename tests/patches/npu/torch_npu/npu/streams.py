# SPDX-License-Identifier: Apache-2.0
"""Streams and events of a device on which everything happens at once."""

import time

from ..graphs import State


class Stream:
    def __init__(self, device=None, priority=0):
        self.npu_stream = id(self)

    def wait_stream(self, stream): ...

    def wait_event(self, event): ...

    def synchronize(self):
        assert State.waiting is None, "waits for a graph that waits for the arguments of its operators"


class Event:
    def __init__(self, enable_timing=False, **kwargs):
        self.time = None

    def record(self, stream=None):
        self.time = time.perf_counter()

    def wait(self, stream=None): ...

    def synchronize(self): ...

    def elapsed_time(self, end):
        """Milliseconds."""
        return (end.time - self.time) * 1e3
