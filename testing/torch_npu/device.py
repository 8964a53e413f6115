# SPDX-License-Identifier: Apache-2.0
"""Device `npu` as a second name of the CPU, or with STANDIN_METER as a device of its own (meter.py)."""

import functools
import threading

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from . import late, meter
from .meter import METERED
from .operators import PYTHON_OPERATIONS

torch.utils.rename_privateuse1_backend("npu")


def on_cpu(device):
    """Return `cpu` for a device named npu or an index; return anything else unchanged, even if it is no device."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "npu" else device
    if isinstance(device, int) or (isinstance(device, str) and device.split(":")[0] == "npu"):
        return "cpu"
    return device


class NpuOnCpu(TorchFunctionMode):
    """Every torch call that names device npu runs on the CPU; pinned memory is ordinary memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.redirect(func, args, dict(kwargs or {}))()

    def redirect(self, func, args, kwargs):
        """Return a function without arguments that makes a torch call on the CPU."""
        if func is torch.device:
            return functools.partial(func, *args, **kwargs)
        if python := PYTHON_OPERATIONS.get(getattr(func, "_qualified_op_name", None)):
            return functools.partial(self.in_python, python, *args, **kwargs)
        if func is torch.Tensor.pin_memory:
            return lambda: args[0]
        if func is torch.histc and not args[0].is_floating_point():  # a CPU has it for floats only
            return lambda: func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        if isinstance(generator := kwargs.get("generator"), Generator):
            generator.before_draw()
        args = [on_cpu(arg) if isinstance(arg, (str, torch.device)) else arg for arg in args]
        if late.is_late(func, args, kwargs):
            return functools.partial(copy_late, func, *args, **kwargs)
        return functools.partial(func, *args, **kwargs)

    def in_python(self, operation, /, *args, **kwargs):
        with self:  # the mode is off here, but the operation names the device, too
            return operation(*args, **kwargs)


def copy_late(func, /, *args, **kwargs):
    """Call Tensor.to or Tensor.copy_, and queue the copy; return the result, whose values come later."""
    out, source = (args[0], args[1]) if func is torch.Tensor.copy_ else (func(*args, **kwargs), args[0])
    if func is torch.Tensor.to:
        out = torch.zeros_like(out)
    late.copy(out, source)
    return out


class Generator(torch.Generator):
    """A CPU generator with a device generator's offset, 4 per draw. It can undo only its last draw."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, device=on_cpu(device))

    def __init__(self, device="cpu"):
        self.offset = 0
        self.previous = None

    def before_draw(self):
        self.previous = self.get_state()
        self.offset += 4

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        if offset != self.offset - 4 or self.previous is None:
            raise NotImplementedError(f"the stand-in takes back one draw, not from offset {self.offset} to {offset}")
        self.set_state(self.previous)
        self.offset, self.previous = offset, None


def enter_modes():
    if METERED:
        meter.Device(on_cpu, Generator).__enter__()
        meter.Kernels().__enter__()
    else:
        NpuOnCpu().__enter__()


def enter():
    torch.Generator = Generator
    torch.Tensor.npu = lambda tensor, *args, **kwargs: tensor.to("npu") if METERED else tensor
    torch._C._get_accelerator = lambda *args: torch.device("cpu")  # torch.distributed.barrier asks

    impl = torch.library.Library.impl
    if METERED:
        meter.default_device()
    else:
        init = DeviceContext.__init__
        DeviceContext.__init__ = lambda self, device: init(self, on_cpu(torch.device(device)))

    def impl_on_cpu(self, name, function, dispatch_key="", **kwargs):
        if dispatch_key in ("CPU", "PrivateUse1") and isinstance(name, str):
            PYTHON_OPERATIONS[f"{self.ns}::{name}"] = function
        # torch registers its namespace fsdp for both keys itself
        if dispatch_key == "PrivateUse1" and self.ns != "fsdp":
            dispatch_key = "CPU"
        return impl(self, name, function, dispatch_key, **kwargs)

    torch.library.Library.impl = impl_on_cpu
    enter_modes()

    run = threading.Thread.run

    def run_on_cpu(thread):
        enter_modes()  # a mode holds in the thread that entered it
        run(thread)

    threading.Thread.run = run_on_cpu


enter()
