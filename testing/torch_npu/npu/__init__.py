# SPDX-License-Identifier: Apache-2.0
"""torch.npu: one device, and a memory meter that shows what the worker checks."""

import os
import sys
import types

import torch

from .. import memory_pool
from ..graphs import (  # noqa: F401  part of torch.npu
    ExternalEvent,
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
)
from .streams import Event, Stream, current_stream, default_stream, stream, synchronize  # noqa: F401

TOTAL_BYTES = 64 << 30
_free_bytes = TOTAL_BYTES

memory = types.SimpleNamespace(NPUPluggableAllocator=None, MemPool=None)  # named in annotations
config = types.SimpleNamespace(allow_internal_format=False)


def mem_get_info(device=None):
    """Return (free, total) bytes; free falls at each call, because the worker asserts that start-up used memory."""
    global _free_bytes
    _free_bytes -= 1 << 20
    return _free_bytes + memory_pool.freed(), TOTAL_BYTES


def memory_stats(device=None):
    return {"allocated_bytes.all.peak": 0, "allocated_bytes.all.current": 0}


def zero(*args):
    """Replaces functions whose results the worker reads but does not depend on."""
    return 0


def device_count():
    """The 16 dies of an A3 host, or one device of the A2."""
    return 16 if is_a3() else 1


def is_available():
    return True


def get_device_name(device=None):
    return "Ascend910B1"


def get_device_properties(device=None):
    return types.SimpleNamespace(name="Ascend910B1", total_memory=TOTAL_BYTES, cube_core_num=24, vector_core_num=48)


def is_a3():
    """Return whether the environment of this process makes the device an A3."""
    return os.environ.get("STANDIN_A3") == "1"


def get_soc_version():
    """220 to 225 are A2, 250 to 255 A3."""
    return 250 if is_a3() else 220


def nothing(*args, **kwargs):
    """Replaces functions that torch and the worker call for their effect on a device."""


max_memory_allocated = memory_allocated = memory_reserved = current_device = zero
is_initialized, _is_in_bad_fork = is_available, nothing
set_device = set_stream = empty_cache = reset_peak_memory_stats = nothing
set_compile_mode = manual_seed = manual_seed_all = nothing
torch._register_device_module("npu", sys.modules[__name__])
names = ["device_count", "empty_cache", "is_available", "memory_reserved", "memory_stats", "synchronize"]
for name in [*names, "reset_peak_memory_stats"]:
    setattr(torch.accelerator, name, globals()[name])  # vLLM 0.23 asks there
torch.accelerator.current_device_index, torch.accelerator.set_device_index = current_device, set_device
