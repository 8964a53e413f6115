# SPDX-License-Identifier: Apache-2.0
"""Streams and events of a device on which everything happens at once."""

import time

from ..graphs import State
from ..meter import METER


class Stream:
    def __init__(self, device=None, priority=0):
        self.npu_stream = id(self)

    def wait_stream(self, stream): ...

    def wait_event(self, event): ...

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        assert State.waiting is None, "waits for a graph that waits for the arguments of its operators"
        METER.wait_for("stream", METER.clock)


class Event:
    def __init__(self, enable_timing=False, **kwargs):
        self.time, self.clock = None, 0

    def record(self, stream=None):
        self.time, self.clock = time.perf_counter(), METER.clock

    def wait(self, stream=None): ...

    def synchronize(self):
        METER.wait_for("event", self.clock)

    def query(self):
        return self.clock <= METER.reached

    def elapsed_time(self, end):
        """Milliseconds."""
        return (end.time - self.time) * 1e3
