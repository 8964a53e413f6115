# SPDX-License-Identifier: Apache-2.0
"""Sleep mode: does with torch's memory what vllm_ascend.device_allocator.camem does with memory of the device.

While a pool sleeps, all bits of its tensors are 1 (floats are nan), so that what is used without being restored or
rewritten shows in the results.
"""

import contextlib
import gc

import torch


def storages():
    """Storages of all tensors, by address. Holding them keeps their addresses from being used again."""
    tensors = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
    taken = [tensor.untyped_storage() for tensor in tensors if is_on_cpu(tensor)]
    return {storage.data_ptr(): storage for storage in taken}


def is_on_cpu(tensor):
    """Return whether a tensor is on the CPU. A tensor that another thread makes or frees has no device: False."""
    try:
        return tensor.device.type == "cpu"
    except RuntimeError:
        return False


class CaMemAllocator:
    instance = None

    @classmethod
    def get_instance(cls):
        cls.instance = cls.instance or cls()
        return cls.instance

    def __init__(self):
        self.pool, self.kept = {}, {}
        self.asleep = set()

    @contextlib.contextmanager
    def use_memory_pool(self, tag="default"):
        before = storages()
        yield
        self.pool[tag] = [storage for address, storage in storages().items() if address not in before and len(storage)]

    def sleep(self, offload_tags=()):
        for tag, taken in self.pool.items():
            self.kept[tag] = [storage.clone() for storage in taken] if tag in offload_tags else None
            for storage in taken:
                storage.fill_(255)
            self.asleep.add(tag)

    def wake_up(self, tags=None):
        for tag in self.asleep & set(tags or self.asleep):
            for storage, kept in zip(self.pool[tag], self.kept[tag] or (), strict=False):
                storage.copy_(kept)
            self.asleep.discard(tag)

    def get_current_usage(self):
        return sum(len(storage) for taken in self.pool.values() for storage in taken)


def freed():
    """Bytes that sleep has freed."""
    allocator = CaMemAllocator.get_instance()
    return sum(len(storage) for tag in allocator.asleep for storage in allocator.pool[tag])
