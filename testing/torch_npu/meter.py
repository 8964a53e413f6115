# SPDX-License-Identifier: Apache-2.0
"""Device npu as a device: tensors are on it or on the host, and what the host waits for and launches is counted.

Entered where STANDIN_METER is set. A storage is on the device if it was made there; views, slices and results of
operators follow. Mixing tensors of both sides raises as on a device, and so does reading one as a NumPy array. While
`METER.events` is a Counter, pinned memory that is overwritten before its copy to the device must have been made raises
at the next wait or copy, and each event counts under (kind, what, dtype, file:line):

    wait      the host reads a value of the device, or a copy or an event that blocks until the device has caught up
    copy      a copy between host and device that blocks nothing
    AICPU     a launch of an operator that operators.csv lists as AICPU
    launch    any other launch of an operator; a graph counts as one launch
    unknown   an operator that operators.csv does not list, or not with this dtype
"""

import contextlib
import os
import sys
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import late
from .operators import PYTHON_OPERATIONS, Call, dtype_name, rows_of, unit

METERED = "STANDIN_METER" in os.environ
NPU = torch.device("privateuseone", 0)  # device.py calls it npu
INSIDE = tuple(str(folder) + "/" for folder in (Path(torch.__file__).parent, Path(__file__).parent))
INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put")
FREE = ("aten::lift_fresh", "aten::resize_", "aten::set_", "aten::_has_compatible_shallow_copy_type")


def tensors_in(*trees):
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, torch.Tensor)]


class Storages:
    """A set of storages that forgets freed storages."""

    def __init__(self):
        self.known, self.limit = {}, 10_000

    def add(self, tensor):
        storage = tensor.untyped_storage()
        self.known[storage._cdata] = StorageWeakRef(storage)  # keeps the address from being used again
        if len(self.known) > self.limit:
            self.known = {key: ref for key, ref in self.known.items() if not ref.expired()}
            self.limit = 2 * len(self.known) + 10_000

    def discard(self, tensor):
        self.known.pop(tensor.untyped_storage()._cdata, None)

    def __contains__(self, tensor):
        return tensor.untyped_storage()._cdata in self.known


class Meter:
    def __init__(self):
        self.device, self.pinned = Storages(), Storages()
        self.events = None  # a Counter while it counts
        self.creating = self.paused = False
        self.inside = False  # whether an operator of the stand-in is running
        self.clock = self.reached = 0  # launches, copies and waits so far, and those that the host knows to be done
        self.sources = []  # sources of copies to the device: clock, pinned memory, its contents

    def on_device(self, tensor):
        return tensor.layout == torch.strided and tensor in self.device

    def note(self, kind, what, dtype="", clock=None):
        self.clock += 1
        if kind == "wait":
            self.reached = clock or self.clock
            self.check_sources()
        if self.events is not None and not self.paused:
            self.events[kind, what, dtype, place()] += 1

    def wait_for(self, what, clock):
        """Notes that the host waits for everything up to `clock`, unless it already knows that this is done."""
        if clock > self.reached:
            self.note("wait", what, clock=clock)

    def copied(self, source, to_device, non_blocking):
        """Notes a copy between host and device."""
        pinned = source in self.pinned
        what = f"copy to the {'device' if to_device else 'host'}"
        what += ", pageable memory" * (to_device and not pinned) + ", blocking" * (not non_blocking)
        free = non_blocking and (pinned or not to_device)
        self.check_sources()
        self.note("copy" if free else "wait", what, dtype_name(source.dtype))
        if free and to_device and self.events is not None:
            with flag("inside", True):
                self.sources.append((self.clock, source, source.clone()))

    def check_sources(self):
        """Raises RuntimeError if pinned memory was overwritten before the host knew that its copy had been made."""
        with flag("inside", True):
            if any(not torch.equal(source, value) for _, source, value in self.sources):
                raise RuntimeError("pinned memory was overwritten before its copy to the device had been made")
        self.sources = [copy for copy in self.sources if copy[0] > self.reached]


METER = Meter()


def place():
    """file:line of the nearest caller outside torch and the stand-in."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_code.co_filename.startswith((*INSIDE, "<")):
        frame = frame.f_back
    file = frame.f_code.co_filename
    for folder in ("/site-packages/", "/src/", "/tests/"):
        file = file.rpartition(folder)[2]
    return f"{file}:{frame.f_lineno}"


def target_of(args, kwargs):
    """The device that a call names, as a torch.device, or None."""
    named = [arg for arg in (kwargs.get("device"), *args) if isinstance(arg, (str, torch.device))]
    for arg in named:
        with contextlib.suppress(RuntimeError):  # a word that is no device, such as an equation or a rounding mode
            return torch.device(arg) if isinstance(arg, str) else arg
    return None


class Device(TorchFunctionMode):
    """Torch functions that concern devices: where a tensor is, and copies between host and device."""

    def __init__(self, on_cpu, generator):
        super().__init__()
        self.on_cpu, self.generator = on_cpu, generator

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.device or METER.inside:
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            if getattr(func, "__self__", None) is torch.Tensor.device and METER.on_device(args[0]):
                return NPU
            return func(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if func is torch.Tensor.pin_memory:
            copy = first.clone()
            METER.pinned.add(copy)
            return copy
        if func is torch.Tensor.is_pinned:
            return first in METER.pinned
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and METER.on_device(first):
            raise TypeError("can't convert npu:0 device type tensor to numpy: copy it to the host first")
        if func is torch.Tensor.tolist and METER.on_device(first):
            METER.note("wait", "tolist")
        if func is torch.Tensor.copy_ and late.is_late(func, args, kwargs):
            METER.copied(args[1], METER.on_device(first), True)
            late.copy(first, args[1])
            return first
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            return self.moved(func, first, args, kwargs)
        return self.made(func, args, kwargs)

    def moved(self, func, tensor, args, kwargs):
        other = next((arg for arg in args[1:] if isinstance(arg, torch.Tensor)), None)
        if func is torch.Tensor.cpu:
            target = torch.device("cpu")
        elif other is not None:
            target = NPU if METER.on_device(other) else torch.device("cpu")
        else:
            target = target_of(args[1:], kwargs)
        if target and target.type == "meta":
            return func(*args, **kwargs)
        words = [self.on_cpu(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args]
        if "device" in kwargs:
            kwargs["device"] = self.on_cpu(kwargs["device"])
        to_device = target is not None and target.type == "npu"
        if target is None or to_device == METER.on_device(tensor):
            return func(*words, **kwargs)
        non_blocking = kwargs.get("non_blocking", False) or (func is torch.Tensor.to and True in words[1:3])
        METER.copied(tensor, to_device, non_blocking)
        with paused():
            out = func(*words, **kwargs)
            out = out.clone() if out.untyped_storage()._cdata == tensor.untyped_storage()._cdata else out
        if to_device:
            METER.device.add(out)
        else:
            METER.device.discard(out)
            METER.pinned.add(out)
        if late.is_late(func, args, kwargs):
            with flag("inside", True):
                out.zero_()
            late.copy(out, tensor)
        return out

    def made(self, func, args, kwargs):
        pinned = kwargs.pop("pin_memory", False)
        target = target_of((), kwargs) if "device" in kwargs else None
        if target is not None:
            kwargs["device"] = self.on_cpu(kwargs["device"])
        if isinstance(generator := kwargs.get("generator"), self.generator):
            generator.before_draw()
        args = [self.on_cpu(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args]
        to_device = target is not None and target.type == "npu"
        from_host = to_device and func in (torch.tensor, torch.as_tensor, torch.asarray)
        with flag("creating", to_device and not from_host), paused(from_host):
            out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.layout == torch.strided and out.device.type == "cpu":
            if from_host and not METER.on_device(out):
                out = out.clone()
                METER.copied(out, True, False)
            if target is not None:
                (METER.device.add if to_device else METER.device.discard)(out)
            if pinned:
                METER.pinned.add(out)
        return out


class Kernels(TorchDispatchMode):
    """Places the results of each operator where its arguments are, and counts the operator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if METER.inside:
            return func(*args, **kwargs)
        name = func.name().partition(".")[0]
        if python := PYTHON_OPERATIONS.get(name):
            with self:
                return python(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        there = [METER.on_device(tensor) for tensor in tensors]
        if not (any(there) or METER.creating):
            return func(*args, **kwargs)
        if name == "aten::copy_" and there[0] != there[-1]:
            METER.copied(tensors[-1], there[0], (*args, kwargs.get("non_blocking", False))[2])
            return func(*args, **kwargs)
        if not rows_of(name):  # in inference mode composite operators arrive undecomposed
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.check(name, tensors, there)
        out = func(*args, **kwargs)
        for result in tensors_in(out):
            if result.layout == torch.strided and result.device.type == "cpu":
                METER.device.add(result)
        if METER.events is not None and not METER.paused and name not in FREE:
            self.count(name, Call(args, kwargs, out))
        return out

    @staticmethod
    def check(name, tensors, there):
        strangers = [tensor for tensor, on_device in zip(tensors, there, strict=True) if not on_device and tensor.dim()]
        if not strangers or METER.creating:
            return
        if name in INDEXING and there[0]:
            METER.note("wait", "index on the host")
            return
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found npu:0 and cpu")

    @staticmethod
    def count(name, call):
        where, dtype = unit(name, call)
        if where != "view":
            METER.note({"AiCore": "launch", "host": "wait"}.get(where, where), name, dtype)


@contextlib.contextmanager
def flag(name, value):
    before = getattr(METER, name)
    setattr(METER, name, value)
    try:
        yield
    finally:
        setattr(METER, name, before)


@contextlib.contextmanager
def paused(value=True):
    """Counts nothing within this context."""
    with flag("paused", METER.paused or value):
        yield


def run(op, *args, **kwargs):
    """Run an operator of the stand-in as one launch, whatever it calls, with results on the device."""
    METER.note("launch", op.__name__, next((dtype_name(t.dtype) for t in tensors_in(args, kwargs)), ""))
    with flag("inside", True):
        out = op(*args, **kwargs)
    for result in tensors_in(out):
        METER.device.add(result)
    return out


def default_device():
    """Let `with torch.device("npu")` create tensors on the device."""
    init, function = DeviceContext.__init__, DeviceContext.__torch_function__

    def note(self, device):
        init(self, torch.device(device) if torch.device(device).type != "npu" else torch.device("cpu"))
        self.npu = torch.device(device).type == "npu"

    def make(self, func, types, args=(), kwargs=None):
        if self.npu and func in _device_constructors() and (kwargs or {}).get("device") is None:
            return func(*args, **{**(kwargs or {}), "device": NPU})
        return function(self, func, types, args, kwargs)

    DeviceContext.__init__, DeviceContext.__torch_function__ = note, make
