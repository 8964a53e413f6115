# SPDX-License-Identifier: Apache-2.0
"""The environment of a run on Ascend, and the Ray that it joins or starts."""

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from llm_rl import config, environment
from llm_rl.errors import UserError
from llm_rl.pin_set import RecipePins

QWEN3 = Path(environment.__file__).parent / "qwen3"


def npu(*overrides):
    """Return the article's 32B recipe with overrides."""
    return config.load(QWEN3 / "dapo_qwen3_32b_32die.yaml", list(overrides))


def variables(run_dir, *overrides):
    recipe = npu(*overrides)
    return environment.variables(recipe, RecipePins(recipe.pin_set), run_dir)


def test_environment_on_ascend(monkeypatch, tmp_path):
    for name in ("HCCL_OP_EXPANSION_MODE", "PYTORCH_NPU_ALLOC_CONF", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    jemalloc = tmp_path / "libjemalloc.so.2"
    monkeypatch.setattr(environment, "JEMALLOC", (str(tmp_path / "no"), str(jemalloc)))
    given = "cluster.interface=eth9 env.MINE=3 env.HCCL_CONNECT_TIMEOUT=600 cluster.hccl_ports=64021-64084"
    env = variables(tmp_path, *given.split(), "env.HCCL_OP_EXPANSION_MODE=AIV")
    assert env["HCCL_CONNECT_TIMEOUT"] == "600" and env["HCCL_EXEC_TIMEOUT"] == "1836" and env["MINE"] == "3"
    assert env["HCCL_HOST_SOCKET_PORT_RANGE"] == env["HCCL_NPU_SOCKET_PORT_RANGE"] == "64021-64084"
    assert env["HCCL_OP_EXPANSION_MODE"] == "AIV"
    assert [env[f"{library}_SOCKET_IFNAME"] for library in ("HCCL", "GLOO", "TP")] == ["=eth9", "eth9", "eth9"]
    assert env["VLLM_ASCEND_ENABLE_NZ"] == "0" and "LD_PRELOAD" not in env and "HCCL_IF_BASE_PORT" not in env
    jemalloc.touch()
    assert variables(tmp_path)["LD_PRELOAD"] == str(jemalloc)
    assert "HCCL_EXEC_TIMEOUT" not in variables(tmp_path, "cluster.device=cuda")


@pytest.mark.parametrize(
    ("model", "overrides", "connect", "waits"),
    [
        ("32b_32die", "", 1200, 1836),
        ("32b_32die", "checkpoints.write_rate=0.4", 2294, 2294),
        ("32b_32die", "checkpoints.write_rate=0.4 checkpoints.every=0", 1200, 1836),
        ("235b_a22b_128die", "", 7200, 7315),
        ("235b_a22b_128die", "checkpoints.write_rate=20", 7200, 7315),
        ("235b_a22b_128die", "checkpoints.write_rate=0.25", 7200, 26331),
        ("235b_a22b_128die", "pin_set=vllm-0.11", 7200, 10800),
    ],
)
def test_ranks_wait_for_the_slowest_writer_of_a_checkpoint(model, overrides, connect, waits, tmp_path):
    """Ranks wait for twice 459 or 3291 GB over the write rate, at most 0.9 GB/s; CANN connects for at most 7200 s."""
    recipe = config.load(QWEN3 / f"dapo_qwen3_{model}.yaml", overrides.split())
    env = environment.variables(recipe, RecipePins(recipe.pin_set), tmp_path)
    assert (int(env["HCCL_CONNECT_TIMEOUT"]), int(env["HCCL_EXEC_TIMEOUT"])) == (connect, waits)


def test_a_ray_that_the_run_starts_may_take_longer_than_30_s(monkeypatch, tmp_path):
    """The run sets variables that the pinned Ray reads, unless the user has set them."""
    names = ("RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert [variables(tmp_path)[name] for name in names] == ["120", "120"]
    assert variables(tmp_path, f"env.{names[0]}='9'")[names[0]] == "9"
    monkeypatch.setenv(names[0], "7")
    assert names[0] not in variables(tmp_path)
    ray = Path(importlib.util.find_spec("ray").origin).parent
    for name, file in zip(names, ("_raylet.so", "_private/node.py"), strict=True):
        assert name.encode() in (ray / file).read_bytes()


def test_a_task_queue_of_level_2_is_the_articles(tmp_path):
    """The recommended profile keeps torch_npu's default level, 1."""
    theirs, ours = variables(tmp_path), variables(tmp_path, "rollout.enforce_eager=false", "profile=recommended")
    assert [(env["TASK_QUEUE_ENABLE"], env["HCCL_BUFFSIZE"]) for env in (theirs, ours)] == [("2", "300"), ("1", "200")]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("env.PYTORCH_NPU_ALLOC_CONF='expandable_segments:True'", "PYTORCH_NPU_ALLOC_CONF has expandable_segments:"),
        ("env.VLLM_ASCEND_ENABLE_NZ='1'", "VLLM_ASCEND_ENABLE_NZ must be 0"),
        ("env.HCCL_EXEC_TIMEOUT='0'", "HCCL_EXEC_TIMEOUT must be a whole number of seconds from 1 to 21.*, got '0'"),
        ("env.HCCL_INTER_HCCS_DISABLE='true'", "HCCL_INTER_HCCS_DISABLE is TRUE, for hosts connected by RoCE alone"),
        ("rollout.enforce_eager=false", "TASK_QUEUE_ENABLE=2 and captured graphs exclude each other"),
        ("cluster.hccl_ports=64021-64083", "64083, a host has 32 processes .*: give it at least 64 ports"),
        ("env.HCCL_OP_EXPANSION_MODE=AIV pin_set=vllm-0.11", "after 1091 s, .* wait 10800 s for the slowest answer in"),
        (
            "env.HCCL_OP_EXPANSION_MODE=AIV checkpoints.write_rate=0.4",
            "after 1091 s, .* wait 2294 s for a checkpoint: ",
        ),
    ],
)
def test_what_cannot_work_on_ascend_is_refused(overrides, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        variables(tmp_path, *overrides.split())


@pytest.mark.slow
def test_all_reduce_is_measured_as_torchrun_starts_it_on_each_host():
    """Two torchrun calls stand for two hosts with one process each, over gloo; only the first prints the result."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    words = ["-m", "llm_rl.all_reduce", "--mib=1", "--repeats=2"]
    hosts = [subprocess.Popen([*torchrun, f"--node-rank={n}", *words], stdout=subprocess.PIPE) for n in (0, 1)]
    said, silent = (host.communicate(timeout=120)[0] for host in hosts)
    assert [host.returncode for host in hosts] == [0, 0] and silent == b""
    measured = json.loads(said)
    assert measured["ranks"] == 2 and measured["gb_s"] > 0


def test_ray_is_joined_only_where_it_has_enough_devices(monkeypatch):
    def probe(address, resource):
        return hosts[0] and hosts[0] | {"address": address}, "refused"

    hosts = []
    monkeypatch.setattr(environment, "_probe", probe)
    monkeypatch.setattr(environment.time, "sleep", lambda seconds: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def address(cluster, *overrides):
        hosts[:] = [cluster]
        return environment.ray_address(npu(*overrides), wait=0)

    assert address({"nodes": [16, 16, 0], "free": 32}) == "auto"
    assert address(None, "cluster.device=cpu") == address(None, "cluster.nodes=1") == "local"
    for cluster, said in (
        (None, r"no Ray runs on this host \(refused\), and the recipe needs 2 x 16 NPU"),
        ({"nodes": [16, 8, 8], "free": 32}, "has 1 host.s. with 16 NPU and 32 of them free"),
        ({"nodes": [16, 16], "free": 16}, "and 16 of them free, and the recipe needs 2 x 16"),
    ):
        with pytest.raises(UserError, match=said):
            address(cluster)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    one_device = ("cluster.device=cpu", "cluster.nodes=1", "cluster.dies_per_node=1")
    assert address({"nodes": [1], "free": 1}, *one_device) == "10.0.0.1:6379"
    with pytest.raises(UserError, match="no Ray cluster answers at RAY_ADDRESS=10.0.0.1:6379"):
        address(None)
