# SPDX-License-Identifier: Apache-2.0
"""Streams and events of a device on which everything happens at once, except for copies on side streams (late.py)."""

import contextlib

from .. import late
from ..graphs import State
from ..meter import METER


class Stream(late.Queue):
    def __init__(self, device=None, priority=0):
        super().__init__()
        self.npu_stream = id(self)

    def wait_stream(self, stream):
        stream.run(stream.queued)

    def wait_event(self, event):
        event.run()

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        assert State.waiting is None, "waits for a graph that waits for the arguments of its operators"
        self.run(self.queued)
        METER.wait_for("stream", METER.clock)


MAIN = Stream()


def current_stream(device=None):
    return late.current() or MAIN


def default_stream(device=None):
    return MAIN


def synchronize(device=None):
    late.run_all()


@contextlib.contextmanager
def stream(stream=None):
    with late.stream(late.current() if stream is None else None if stream is MAIN else stream):
        yield stream


class Event:
    def __init__(self, enable_timing=False, **kwargs):
        self.clock, self.stream, self.until = 0, MAIN, 0

    def record(self, stream=None):
        self.clock, self.stream = METER.clock, stream or current_stream()
        self.until = self.stream.queued

    def run(self):
        self.stream.run(self.until)

    def wait(self, stream=None):
        self.run()

    def synchronize(self):
        self.run()
        METER.wait_for("event", self.clock)

    def query(self):
        """Return whether the event has happened. If not, it happens right after this call."""
        happened = self.stream.done >= self.until and self.clock <= METER.reached
        self.run()
        return happened
