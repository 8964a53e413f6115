# SPDX-License-Identifier: Apache-2.0
"""Graphs of the device: captured once, then replayed on the same tensors without the Python code around them.

While a graph is captured, every operation of torch and every operator of the stand-in is recorded. A replay runs them
again, each into the tensors it returned at capture; what was a Python number then stays what it was. As on the device,
an operator in a task group can be given new arguments for each replay, and a replay stops at an external event until it
is recorded. An operator that only writes into its arguments is recorded and not run.
"""

import contextlib

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from . import meter
from .operators import PYTHON_OPERATIONS


class Call:
    def __init__(self, function, args, kwargs, out):
        self.function, self.args, self.kwargs, self.out = function, args, kwargs, out

    def __call__(self):
        now = self.function(*self.args, **self.kwargs)
        for old, new in zip(tree_leaves(self.out), tree_leaves(now), strict=False):
            if hasattr(old, "copy_") and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class State:
    """State of the compute stream: the graph being captured, the task group being updated, and the waiting replay."""

    capturing = updating = waiting = None
    paused = False


class Recorder(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if python := PYTHON_OPERATIONS.get(function.name().partition(".")[0]):
            with self:
                return python(*args, **kwargs)
        out = function(*args, **kwargs)
        State.capturing.nodes.append(Call(function, args, kwargs, out))
        return out


def takes(operator, args, kwargs):
    """Return whether this call must not run, because it only updates a task group or is only recorded."""
    if State.updating is not None:
        assert State.updating.function is operator, "a task group gets arguments of another operator"
        State.updating.args, State.updating.kwargs = args, kwargs
        return True
    if State.capturing and not State.paused and getattr(operator, "writes_only", False):
        State.capturing.nodes.append(Call(operator, args, kwargs, None))
        return True
    return False


def kernel(operator, op, args, kwargs):
    """Run an operator of the stand-in, recorded as one node."""
    if not State.capturing or State.paused:
        return op(*args, **kwargs)
    State.paused = True
    try:
        with _disable_current_modes():
            out = op(*args, **kwargs)
    finally:
        State.paused = False
    State.capturing.nodes.append(Call(operator, args, kwargs, out))
    return out


def writes_only(operator):
    operator.writes_only = True
    return operator


class NPUGraph:
    replays = 0

    def __init__(self):
        self.nodes, self.at = [], 0

    def replay(self):
        assert State.waiting is None, "a graph is replayed while another one waits for the arguments of its operators"
        NPUGraph.replays += 1
        self.at = 0
        meter.METER.note("launch", "graph")
        self.run()

    @meter.paused()
    def run(self):
        State.waiting = None
        while self.at < len(self.nodes):
            node = self.nodes[self.at]
            if isinstance(node, ExternalEvent) and not node.happened:
                State.waiting = self
                return
            self.at += 1
            if not isinstance(node, ExternalEvent):
                node()


class ExternalEvent:
    happened = False

    def wait(self, stream):
        assert State.capturing, "waited for outside a graph"
        State.capturing.nodes.append(self)

    def reset(self, stream):
        State.capturing.nodes.append(lambda: setattr(self, "happened", False))

    def record(self, stream):
        self.happened = True
        if State.waiting is not None:
            State.waiting.run()


@contextlib.contextmanager
def graph(npu_graph, pool=None, stream=None):
    assert State.capturing is None
    State.capturing = npu_graph
    try:
        with Recorder():
            yield
    finally:
        State.capturing = None


def graph_task_group_begin(stream):
    State.group = len(State.capturing.nodes)


def graph_task_group_end(stream):
    (node,) = (node for node in State.capturing.nodes[State.group :] if hasattr(node.function, "writes_only"))
    return node


def graph_task_update_begin(stream, handle):
    State.updating = handle


def graph_task_update_end(stream):
    State.updating = None


def graph_pool_handle():
    return (0, 0)
