# SPDX-License-Identifier: Apache-2.0
"""Modules that vllm-ascend imports by name: modules without anything a CPU could run, sleep mode, and the module that
its build writes."""

import sys
import types

from . import memory_pool
from .distributed import ProcessGroupHCCL
from .npu import is_a3, nothing
from .ops import install_slots

MODULES = {
    "torch_npu._C": {"_NPUTaskGroupHandle": object, "_weak_ref_tensor": lambda tensor: tensor},
    "torch_npu._C._distributed_c10d": {"ProcessGroupHCCL": ProcessGroupHCCL},
    "torch_npu.npu.mstx": {},  # verl's profiler imports it
    "torch_npu.op_plugin": {},
    "torch_npu.op_plugin.atb": {},
    "torch_npu.op_plugin.atb._atb_ops": {"_register_atb_extensions": install_slots},
    "torch_npu.profiler": {},
    "torch_npu.profiler.dynamic_profile": {"init": nothing, "step": nothing},
    "acl": {},
    "acl.rt": {"memcpy": None},
    "torchair": {"patch_for_hcom": nothing},
    "torchair.ops": {"NpuStreamSwitch": None, "npu_wait_tensor": None},
    "torchair.scope": {"npu_stream_switch": None, "npu_wait_tensor": None, "super_kernel": None},
}


def build_info(name):
    """Return what vllm-ascend's build records of the device under this name."""
    values = {"__soc_version__": "ASCEND910B1", "__device_type__": "A2", "__sleep_mode_enabled__": True}
    if is_a3():
        values |= {"__soc_version__": "ASCEND910_9391", "__device_type__": "A3"}
    if name not in values:
        raise AttributeError(name)
    return values[name]


def install():
    sys.modules["vllm_ascend._build_info"] = module = types.ModuleType("vllm_ascend._build_info")
    module.__getattr__ = build_info
    sys.modules["vllm_ascend.device_allocator.camem"] = memory_pool
    for name, contents in MODULES.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents, __path__=[])
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
