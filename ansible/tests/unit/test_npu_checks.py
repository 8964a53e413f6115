# SPDX-License-Identifier: Apache-2.0
"""Checks of dies and hosts: each fault gives its sentence with host, what was found, what was expected, what to do."""

from pathlib import Path

import npu_outputs
from ansible_collections.sam_rl.ascend.plugins.filter import preflight
from ansible_collections.sam_rl.ascend.plugins.module_utils import npu
from ansible_collections.sam_rl.ascend.plugins.modules import host_info


def dies(host=0, **changes):
    found = npu.parse_info(npu_outputs.info(16, **changes))[1]
    for die in found:
        die.update(sdid=host * 100 + die["phy"], server_index=host, super_pod_id=3, tls=0)
        die["vnic_ip"] = f"192.168.{host + 1}.{die['phy'] + 1}"
    return found


def state(host=0, **changes):
    return {"version": "26.0.rc1", "dies": dies(host, **changes), "errors": [], "warnings_found": []}


def codes(problems):
    return [problem["code"] for problem in problems]


def test_healthy_host():
    assert npu.check_dies(dies(), 16) == ([], [])
    assert npu.check_host(dies()) == []


def test_dead_missing_and_busy_dies():
    errors, warnings = npu.check_dies(dies(phy7={"health": "Critical"}, phy2={"used": 60000}), 16)
    assert codes(errors) == ["die_health"] and "die 7 (NPU 3 chip 1) has health 'Critical'" in errors[0]["sentence"]
    assert codes(warnings) == ["hbm_busy"] and warnings[0]["die"] == 2
    (error,) = npu.check_dies(dies()[:14], 16)[0]
    assert error["code"] == "die_count" and "lists 14 dies (missing: 14, 15), expected 16" in error["sentence"]
    assert codes(npu.check_dies([*dies(), dies()[0]], 16)[0]) == ["die_count"]


def test_dies_of_one_host_must_agree():
    mixed = dies()
    mixed[3]["tls"], mixed[4]["server_index"] = 1, 9
    assert codes(npu.check_host(mixed)) == ["server_index", "tls_mixed"]


def test_hosts_must_agree():
    assert preflight.across_hosts({"a": state(0), "b": state(1)}) == []
    clash, other = state(0), state(1)
    other["dies"][5]["sdid"] = 4
    for die in other["dies"]:
        die["tls"], die["super_pod_id"] = 1, 8
    problems = preflight.across_hosts({"a": clash, "b": other})
    assert problems[0].startswith("b die 5: SDID 4 is that of a die 4 too, expected unique")
    assert problems[1].startswith("tls switch differs between hosts (0 on a; 1 on b), expected the same on all")
    assert problems[2].startswith("Super Pod ID differs between hosts (3 on a; 8 on b)")
    assert len(problems) == 3


def test_pings_go_once_round():
    states = {name: state(number) for number, name in enumerate("abc")}
    assert preflight.ping_targets(states, "a")["0"] == "192.168.2.1"
    assert preflight.ping_targets(states, "c")["15"] == "192.168.1.16"
    assert preflight.ping_targets({"a": state()}, "a") == {}


def test_sentences_of_one_host():
    want = {"host": "npu1", "version": "25.5.1", "installs": False}
    (problem,) = preflight.npu_problems(state(), want)
    assert problem.startswith("npu1: npu-smi says driver 26.0.rc1, expected 25.5.1 (ascend_driver_version)")
    assert preflight.npu_problems(state(), {**want, "installs": True}) == []
    lost = {**state(), "errors": [npu.problem("x", f"die {phy}: lost", phy) for phy in (0, 1, 2, 7)]}
    assert preflight.npu_problems(lost, {**want, "version": "26.0.rc1"}) == ["npu1: dies 0-2, 7: lost."]


HOST = {
    "address": "10.0.0.1",
    "free_gb": {"/data": 100.0},
    "listening": {"22": ["0.0.0.0"]},
    "unreachable_peers": [],
    "clock_offset": 0.001,
    "clock_missing": False,
    "clock_problem": None,
    "mtu": 1500,
    "engine_root": None,
    "engine_problem": None,
}
WANT = {
    "host": "npu1",
    "interface": "eth0",
    "address": "10.0.0.1",
    "free_gb": {"/data": 50},
    "engine": "docker",
    "engine_gb": 60,
    "ports": [6379],
    "unit_active": False,
    "clock_limit": 1.0,
    "provisioned": True,
}


def test_fit_host():
    assert preflight.host_problems(HOST, WANT) == []


def test_unfit_host():
    changes = [
        ({"address": None}, "npu1: interface eth0 has the address none, expected 10.0.0.1"),
        ({"free_gb": {"/data": 49.9}}, "npu1: 49.9 GB are free for /data, expected at least 50 GB"),
        (
            {"listening": {"6379": ["0.0.0.0"]}},
            "npu1: port 6379 is taken (a program listens on 0.0.0.0), expected free",
        ),
        (
            {"unreachable_peers": [{"address": "10.0.0.2", "reason": "time-out"}]},
            "npu1: no answer from 10.0.0.2 (time-out)",
        ),
        ({"engine_problem": "there is no docker"}, "npu1: there is no docker, expected a docker that answers: install"),
        (
            {"engine_root": "/var/lib/docker", "free_gb": {"/data": 100.0, "/var/lib/docker": 59.9}},
            "npu1: 59.9 GB are free for /var/lib/docker, where docker keeps images, expected at least 60 GB: free",
        ),
        ({"clock_offset": -2.5}, "npu1: its clock is off by -2.500 s, expected at most 1.0 s"),
        ({"clock_offset": None, "clock_problem": "x"}, "npu1: its clock cannot be checked (x)"),
    ]
    for change, sentence in changes:
        (problem,) = preflight.host_problems({**HOST, **change}, WANT)
        assert problem.startswith(sentence) and problem.endswith("."), problem


def test_hosts_that_send_packets_of_other_sizes():
    states = {"a": HOST, "b": {**HOST, "mtu": 9000}, "c": HOST, "d": {**HOST, "mtu": None}}
    (problem,) = preflight.mtu_problems(states, "eth0")
    assert problem.startswith(
        "the MTU of eth0 differs between hosts (1500 on a, c; 9000 on b), expected the same on all: "
    )
    assert preflight.mtu_problems({"a": HOST, "c": HOST}, "eth0") == []


def test_what_an_engine_says_of_its_folder(tmp_path, monkeypatch):
    """Of programs that print what docker does, whose daemon is away, and that are not there."""
    program = tmp_path / "docker"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program.write_text('#!/bin/sh\n[ "$1 $2 $3" = "info --format {{.DockerRootDir}}" ] && echo /var/lib/docker\n')
    program.chmod(0o755)
    assert host_info.engine_root("docker", 30) == ("/var/lib/docker", None)
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    assert host_info.engine_root("docker", 30) == (None, "`docker info` says: Cannot connect to the Docker daemon")
    assert host_info.engine_root("no-engine", 30) == (None, "there is no no-engine")
    assert host_info.engine_root("none", 30) == (None, None)
    assert host_info.mtu_of("lo") == int(Path("/sys/class/net/lo/mtu").read_text())
    assert host_info.mtu_of("none0") is None


def test_what_provisioning_mends_is_no_error_before_it():
    bare = {**HOST, "clock_offset": None, "clock_missing": True, "clock_problem": "chronyc is not on this host"}
    assert preflight.host_problems(bare, {**WANT, "provisioned": False}) == []
    assert len(preflight.host_problems(bare, WANT)) == 1
    ours = {**HOST, "listening": {"6379": ["10.0.0.1"]}}
    assert preflight.host_problems(ours, {**WANT, "unit_active": True}) == []
