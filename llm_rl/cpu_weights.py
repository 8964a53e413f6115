# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for verl without an accelerator: sends new weights to engines on other hosts over TCP.

actor_rollout_ref.rollout.checkpoint_engine: {backend: store, custom_backend_module: llm_rl.cpu_weights}

For small models: the first actor holds all weights in memory until every engine has them.
"""

import pickle
from typing import Any

import ray
import torch
from torch.distributed import TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

END = b""
"""Value that marks the end of the tensors."""


@CheckpointEngineRegistry.register("store")
class StoreCheckpointEngine(CheckpointEngine):
    """Opens a TCPStore for each update, in which the first actor stores the tensors under consecutive numbers."""

    def __init__(self, bucket_size, is_master=False):
        self.is_master = is_master
        self.store: Any = None

    def prepare(self):
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return host, self.store.port

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        return tuple({"address": [metadata[0]] * size} for size in (actor_wg_world_size, rollout_world_size))

    def init_process_group(self, address):
        self.store = self.store or TCPStore(*address, is_master=False)

    def finalize(self):
        self.store = None

    @torch.no_grad()
    async def send_weights(self, weights, global_steps=None):
        count = 0
        async for name, tensor in ensure_async_iterator(weights):  # every actor takes part in gathering them
            if self.is_master:
                self.store.set(
                    str(count), pickle.dumps((name, tensor.cpu().clone()))
                )  # without the rest of its storage
                count += 1
        if self.is_master:
            self.store.set(str(count), END)

    async def receive_weights(self, global_steps=None):
        count = 0
        while (item := self.store.get(str(count))) != END:
            yield pickle.loads(item)
            count += 1
