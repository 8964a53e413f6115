# SPDX-License-Identifier: Apache-2.0
"""Process groups of backend hccl run on gloo, and are looked up by the names that HCCL gives them."""

import functools

import torch
import torch.distributed
from torch.distributed import distributed_c10d


class ProcessGroupHCCL:
    class Options:
        def __init__(self):
            self.hccl_config = {}


def on_gloo(make_group):
    @functools.wraps(make_group)
    def wrapped(*args, **kwargs):
        args = ["gloo" if arg == "hccl" else arg for arg in args]
        if "hccl" in str(kwargs.get("backend", "")):
            kwargs["backend"] = "gloo"
        if isinstance(kwargs.get("pg_options"), ProcessGroupHCCL.Options):
            del kwargs["pg_options"]
        return make_group(*args, **kwargs)

    return wrapped


for name in ("init_process_group", "new_group"):
    setattr(distributed_c10d, name, on_gloo(getattr(distributed_c10d, name)))
    setattr(torch.distributed, name, getattr(distributed_c10d, name))


NAMED = {}
"""Process groups by the name that get_hccl_comm_name gave."""


class Backend:
    """A group's backend on the device. It knows the group's name."""

    def __init__(self, group):
        self.group = group

    def get_hccl_comm_name(self, rank):
        name = f"group of {torch.distributed.get_process_group_ranks(self.group)}"
        NAMED[name] = self.group
        return name

    def __getattr__(self, name):
        return getattr(get_backend(self.group, torch.device("cpu")), name)


get_backend = torch.distributed.ProcessGroup._get_backend
torch.distributed.ProcessGroup._get_backend = lambda group, device: (
    Backend(group) if device.type == "npu" else get_backend(group, device)
)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """HCCL's all_gather accepts different numbers of rows from the ranks; gloo's does not."""
    rows = [len(part) for part in tensor_list]
    if len(set(rows)) == 1:
        return all_gather_equal(tensor_list, tensor, group, async_op)
    assert not async_op
    padded = tensor.new_zeros(max(rows), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in rows]
    all_gather_equal(parts, padded, group)
    for part, whole in zip(tensor_list, parts, strict=True):
        part.copy_(whole[: len(part)])


all_gather_equal = torch.distributed.all_gather
torch.distributed.all_gather = all_gather
torch.distributed.is_hccl_available = lambda: True
