# SPDX-License-Identifier: Apache-2.0
"""A CPU platform for verl, loaded as a verl plugin, so that the whole trainer runs without an accelerator.

VERL_USE_EXTERNAL_MODULES=llm_rl.cpu_platform VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda

Ray schedules each "device" as a GPU resource that is declared, not detected (ray_init.num_gpus).
"""

import types
from contextlib import contextmanager

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

_NO_OPERATIONS = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_per_process_memory_fraction")
_ALWAYS_ZERO = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


class _Device(types.ModuleType):
    """torch.cpu with the names of torch.cuda that verl calls; memory counters read 0."""

    def __getattr__(self, name):
        if name in _NO_OPERATIONS:
            return lambda *args, **kwargs: None
        if name in _ALWAYS_ZERO:
            return lambda *args, **kwargs: 0
        if name == "mem_get_info":
            import psutil

            memory = psutil.virtual_memory()
            return lambda *args, **kwargs: (memory.available, memory.total)
        if name in ("manual_seed", "manual_seed_all"):
            return torch.manual_seed
        if name == "get_rng_state":
            return lambda *args, **kwargs: torch.get_rng_state()
        if name == "set_rng_state":
            return lambda state, *args, **kwargs: torch.set_rng_state(state)
        if name == "get_device_name":
            return lambda *args, **kwargs: "cpu"
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("llm_rl.cpu_device")

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def _nothing(self, *args, **kwargs):
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False


def _accept_gloo_twice() -> None:
    """Work around torch, which refuses verl's backend "cpu:gloo,cpu:gloo" because it names a device twice."""
    init = torch.distributed.init_process_group

    def init_process_group(backend=None, *args, **kwargs):
        return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


_accept_gloo_twice()
torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # FSDP pins a reference model, which needs a driver
