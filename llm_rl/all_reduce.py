# SPDX-License-Identifier: Apache-2.0
"""Measure the all-reduce over all devices of a cluster; torchrun starts it on every host.

Rank 0 prints a line of JSON: `ranks`, and `gb_s`, bytes of a rank over the mean time of the slowest rank, which
hccl_test calls alg_bandwidth. A wrong sum is an error.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> int:
    parser = argparse.ArgumentParser(prog="torchrun -m llm_rl.all_reduce", description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=512, help="size of a rank's tensor")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    kind, backend = ("npu", "hccl") if importlib.util.find_spec("torch_npu") else ("cpu", "gloo")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]) if kind == "npu" else 0)
    if kind == "npu":
        importlib.import_module("torch_npu").npu.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=5))
    ranks, size = dist.get_world_size(), args.mib << 20
    tensor = torch.ones(size // 4, device=device)
    dist.all_reduce(tensor)
    if not torch.all(tensor == ranks).item():
        print(f"error: rank {dist.get_rank()} got a wrong sum from the all-reduce of {ranks} ranks", file=sys.stderr)
        return 1
    times = torch.zeros(1, device=device)
    for repeat in range(-3, args.repeats):  # the first are not counted
        begin = time.monotonic()
        dist.all_reduce(tensor.fill_(1))
        tensor[0].item()  # waits for the device
        times += (repeat >= 0) * (time.monotonic() - begin)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"ranks": ranks, "gb_s": round(size * args.repeats / times.item() / 1e9, 3)}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
