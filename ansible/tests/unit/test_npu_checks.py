# SPDX-License-Identifier: Apache-2.0
"""Each fault of a die or host gives a sentence with the host, what was found, what was expected, and what to do."""

import itertools
import json
import shutil
from pathlib import Path

import npu_outputs
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sam_rl.ascend.plugins.filter import preflight
from ansible_collections.sam_rl.ascend.plugins.module_utils import npu
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import Unreadable
from ansible_collections.sam_rl.ascend.plugins.modules import host_info, npu_info
from conftest import program

ACCEPTED = ["Warning", "Alarm"]


def dies(host=0, **changes):
    found = npu.parse_info(npu_outputs.info(16, **changes))[1]
    for die in found:
        die.update(sdid=host * 100 + die["phy"], server_index=host, super_pod_id=3, tls=0)
        die["vnic_ip"] = f"192.168.{host + 1}.{die['phy'] + 1}"
        if not die["chip"]:
            die["firmware"] = "7.8.0"
    return found


def state(host=0, **changes):
    return {"version": "26.0.rc1", "dies": dies(host, **changes), "errors": [], "warnings_found": []}


def codes(problems):
    return [problem["code"] for problem in problems]


def test_healthy_host():
    assert npu.check_dies(dies(), 16, ACCEPTED) == ([], [])
    assert npu.check_host(dies()) == []


def test_versions_of_the_driver_are_ordered():
    versions = [
        "24.1.rc1",
        "24.1.rc1.b030",
        "24.1.rc3",
        "24.1.rc3.7",
        "24.1.rc3.SPC8",
        "25.0.rc1",
        "25.0.RC1.1",
        "25.0.rc2",
        "25.0.0",
    ]
    keys = [npu.driver_order(version) for version in [*versions, "25.0.1", "25.2", "25.10.rc1"]]
    assert all(one < other for one, other in itertools.pairwise(keys))
    assert npu.driver_order("25.0") == npu.driver_order("25.0.0")
    for wrong in ("newest", "", "25..0", "25.0.rc", "25.0.0 (old)"):
        with pytest.raises(Unreadable):
            npu.driver_order(wrong)


def test_dead_missing_and_busy_dies():
    for health in ("Critical", "UNKNOWN"):
        errors, warnings = npu.check_dies(dies(phy7={"health": health}, phy2={"hbm_used": 60000}), 16, ACCEPTED)
        assert codes(errors) == ["die_health"]
        assert f"die 7 (NPU 3 chip 1) has health '{health}', expected OK" in errors[0]["sentence"]
        assert codes(warnings) == ["hbm_busy"] and warnings[0]["die"] == 2
    errors, warnings = npu.check_dies(dies(phy7={"health": "Alarm"}, phy8={"health": "Alarm"}), 16, ACCEPTED)
    (said,) = preflight.by_dies(warnings)
    assert errors == [] and said.startswith("dies 7-8: health is 'Alarm', expected OK, but such dies may still work: ")
    (error,) = npu.check_dies(dies(phy3={"hbm_used": "NA", "hbm_total": "NA"}), 16, ACCEPTED)[0]
    assert error["code"] == "hbm_unreadable" and error["sentence"].startswith(
        "die 3 (NPU 1 chip 1) has HBM that npu-smi"
    )
    (error,) = npu.check_dies(dies()[:14], 16, ACCEPTED)[0]
    assert error["code"] == "die_count" and "lists 14 dies (missing: 14, 15), expected 16" in error["sentence"]
    assert codes(npu.check_dies([*dies(), dies()[0]], 16, ACCEPTED)[0]) == ["die_count"]


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
    other["dies"][2]["firmware"], other["dies"][4]["firmware"] = "7.7.0", None
    problems = preflight.across_hosts({"a": clash, "b": other})
    assert problems[0].startswith("b die 5: SDID 4 is that of a die 4 too, expected unique")
    assert problems[1].startswith("the firmware differs between hosts (7.7.0 on b; 7.8.0 on a, b), expected the same")
    assert problems[2].startswith("tls switch differs between hosts (0 on a; 1 on b), expected the same on all")
    assert problems[3].startswith("Super Pod ID differs between hosts (3 on a; 8 on b)")
    assert len(problems) == 4
    assert preflight.across_hosts({"a": clash, "b": other}, installs=True) == [problems[0], *problems[2:]]


@pytest.fixture
def read(tmp_path, capsys):
    """read(conf, outputs={}, **arguments) runs npu_info with the bed's tools and returns its result.

    conf: content of /etc/hccn.conf; None: no such file. outputs: {call: what it prints instead}.
    """
    said = tmp_path / "say"
    said.mkdir()
    for tool in ("npu-smi", "hccn_tool"):
        fake = Path(npu_outputs.__file__).parents[1] / "bed/fakes" / tool
        (tmp_path / tool).write_text(fake.read_text().replace("/etc/sam-bed/say", str(said)))
        (tmp_path / tool).chmod(0o755)

    def run(conf, outputs=None, **arguments):
        for call, text in (npu_outputs.npu.outputs(npu_outputs.STATE) | (outputs or {})).items():
            (said / call).write_text(text)
        file = tmp_path / "hccn.conf"
        file.unlink(missing_ok=True)
        if conf is not None:
            file.write_text(conf)
        tools = {"npu_smi": str(tmp_path / "npu-smi"), "hccn_tool": str(tmp_path / "hccn_tool")}
        with patch_module_args({"dies": 16, "hccn_conf": str(file), **tools, **arguments}), pytest.raises(SystemExit):
            npu_info.main()
        return json.loads(capsys.readouterr().out)

    return run


CONF = "".join(f"address_{die['phy']}={die['ip']}\n" for die in npu_outputs.STATE["dies"])


def test_the_addresses_in_hccn_conf_are_those_of_the_dies(read):
    """A missing file is only a warning if the dies have addresses, and no problem before the driver is installed."""
    assert read(CONF)["errors"] == []
    found = read(None)
    assert found["errors"] == [] and "hccn_conf_missing" in codes(found["warnings_found"])
    (error,) = read(CONF.replace("address_3=10.2.0.103", "address_3=10.2.0.9"))["errors"]
    said = "die 3: its address is 10.2.0.103 (`hccn_tool -i 3 -ip -g`), /etc/hccn.conf has 10.2.0.9: "
    assert error["code"] == "hccn_conf_stale" and error["sentence"].startswith(said)
    down = {"hccn_tool -i 3 -vnic -g": "vnic link status: UP\nvnic ipaddr: \n"}
    assert codes(read(None, down)["errors"]) == ["vnic_down"]
    bare = read(None, npu_smi="/none/npu-smi")
    want = {"host": "npu1", "version": "26.0.rc1", "firmware": "", "installs": True}
    assert codes(bare["errors"]) == ["npu_smi_missing"] and preflight.npu_problems(bare, want) == []


@pytest.mark.parametrize(
    ("compatibility", "errors", "warned"), [("NOK", ["firmware_incompatible"], False), ("UNKNOWN", [], True)]
)
def test_driver_and_firmware_are_of_one_release(read, compatibility, errors, warned):
    module = npu_outputs.STATE["dies"][6] | {"firmware": "7.7.0.1.231", "compatibility": compatibility}
    outputs = {"npu-smi info -t board -i 3": npu_outputs.npu.board(module)}
    found = read(CONF, outputs)
    assert codes(found["errors"]) == errors and ("firmware_incompatible" in codes(found["warnings_found"])) is warned
    said = f"NPU 3: the compatibility of driver and firmware 7.7.0.1.231 is '{compatibility}', expected OK: install "
    assert any(one["sentence"].startswith(said) for one in found["errors"] + found["warnings_found"])
    want = {"host": "npu1", "version": "26.0.rc1", "firmware": "7.8.0.6.201", "installs": True}
    assert preflight.npu_problems(found, want) == []
    problem = preflight.npu_problems(found, {**want, "installs": False})[-1]
    assert problem.startswith("npu1: npu-smi says firmware 7.7.0.1.231 of NPU 3, expected 7.8.0.6.201 (ascend_firmw")


def test_health_states_are_accepted_and_faults_are_named(read):
    alarm = {"health": "Alarm", "faults": "80C98009, 80E18402"}
    outputs = {"npu-smi info": npu_outputs.info(phy5=alarm)}
    outputs["npu-smi info -t health -i 2 -c 1"] = npu_outputs.npu.health(alarm)
    (error,) = read(CONF, outputs)["errors"]
    assert error["sentence"].startswith("die 5 (NPU 2 chip 1) has health 'Alarm' (80C98009, 80E18402), expected OK: ")
    found = read(CONF, outputs, accepted_health=ACCEPTED)
    assert found["errors"] == []
    said = "die 5: health is 'Alarm' (80C98009, 80E18402), expected OK, but such dies may still work: repair it"
    assert found["warnings_found"][0]["sentence"].startswith(said)


def test_a_ping_of_an_occupied_device_is_tried_again(read, tmp_path, monkeypatch):
    monkeypatch.setattr(npu_info.time, "sleep", lambda _: None)
    tool, tries, call = tmp_path / "hccn_tool", tmp_path / "tries", "hccn_tool -i 0 -hccs_ping -g address 192.168.1.199"
    text = tool.read_text()
    for status, occupied, good in ((1, 2, True), (0, 2, True), (1, 3, False)):
        tries.unlink(missing_ok=True)
        count = f"echo >>{tries}; [ $(wc -l <{tries}) -gt {occupied} ]"
        tool.write_text(text.replace("said=", f"{count} || {{ echo device is occupied; exit {status}; }}\nsaid=", 1))
        errors = read(CONF, {call: npu_outputs.PING}, ping={"0": "192.168.1.199"})["errors"]
        assert errors == [] if good else "device is occupied" in errors[0]["sentence"]


def test_pings_go_once_round():
    states = {name: state(number) for number, name in enumerate("abc")}
    assert preflight.ping_targets(states, "a")["0"] == "192.168.2.1"
    assert preflight.ping_targets(states, "c")["15"] == "192.168.1.16"
    assert preflight.ping_targets({"a": state()}, "a") == {}


def test_sentences_of_one_host():
    want = {"host": "npu1", "version": "25.5.1", "firmware": "", "installs": False}
    (problem,) = preflight.npu_problems(state(), want)
    assert problem.startswith("npu1: npu-smi says driver 26.0.rc1, expected 25.5.1 (ascend_driver_version)")
    assert preflight.npu_problems(state(), {**want, "installs": True}) == []
    assert preflight.npu_problems(state(), {**want, "version": "26.0.RC1"}) == []
    lost = {**state(), "errors": [npu.problem("x", f"die {phy}: lost", phy) for phy in (0, 1, 2, 7)]}
    assert preflight.npu_problems(lost, {**want, "version": "26.0.rc1"}) == ["npu1: dies 0-2, 7: lost."]


HOST = {"free_gb": {"/data": 100.0, "/var/lib/docker": 99.0}, "listening": {"22": ["0.0.0.0"]}, "unreachable_peers": []}
HOST["kernel_upgrades"] = None
FACTS = {"ansible_facts": {"ansible_bond0_7": {"ipv4": {"address": "10.0.0.1"}, "mtu": 1500}}}
WANT = {"host": "npu1", "interface": "bond0.7", "address": "10.0.0.1", "free_gb": {"/data": 50}, "engine": "docker"}
WANT |= {"network": "10.0.0.0/24", "firewalls": {"10.0.0.2": ["ufw"]}}
WANT |= {
    "engine_gb": 60,
    "ports": ["6379", "20000-20989"],
    "unit_active": False,
    "clock_limit": 1.0,
    "provisioned": True,
    "dies": 16,
}


def command(words, stdout="", rc=0, stderr=""):
    """The result of a command that was run by `timeout`."""
    return {"cmd": ["timeout", "5", *words.split()], "rc": rc, "stdout": stdout, "stderr": stderr}


CLOCK, ENGINE = command("chronyc -c tracking", npu_outputs.CHRONY), command("docker info", "/var/lib/docker")


def problems(facts=FACTS, clock=CLOCK, engine=ENGINE, want=WANT, **state):
    return preflight.host_problems({**HOST, **state}, facts, clock, engine, want)


def test_unfit_host():
    assert problems() == []
    late = npu_outputs.CHRONY.replace("-0.000012", "-2.5")
    away = command("docker info", "", 1, "Cannot connect to the Docker daemon")
    for changes, sentence in (
        ({"facts": {"ansible_facts": {}}}, "npu1: interface bond0.7 has the address none, expected 10.0.0.1"),
        ({"free_gb": {**HOST["free_gb"], "/data": 49.9}}, "npu1: 49.9 GB are free for /data, expected at least 50 GB"),
        (
            {"listening": {"6379": ["0.0.0.0"]}},
            "npu1: port 6379 is taken (a program listens on 0.0.0.0), expected free",
        ),
        (
            {"listening": {"20500": ["::"], "20990": ["::"]}},
            "npu1: port 20500 of 20000-20989 is taken (a program listens on ::), expected free",
        ),
        (
            {"unreachable_peers": [{"address": "10.0.0.2", "reason": "out", "ports": [6379, 20000]}]},
            "npu1: no answer from 10.0.0.2 at TCP ports 6379, 20000 (out), expected the hosts of npu_hosts to reach "
            "each other at 6379, 20000-20989 and at ephemeral ports (32768-60999): call `ufw allow from "
            "10.0.0.0/24` on every host.",
        ),
        (
            {"kernel_upgrades": {"by": "dnf-automatic", "hold": "dnf versionlock add kernel"}},
            "npu1: dnf-automatic may replace the kernel that the driver was built for, expected it on hold: call `dnf "
            "versionlock add kernel` there, and",
        ),
        (
            {"engine": command("docker info", rc=127)},
            "npu1: docker is not on this host, expected a docker that answers",
        ),
        (
            {"engine": away},
            "npu1: `docker info` ended with status 1 and printed: Cannot connect to the Docker daemon, ",
        ),
        ({"engine": command("docker info", "<no value>")}, "npu1: <no value>, expected a docker that answers"),
        (
            {"free_gb": {"/data": 100.0, "/var/lib/docker": 59.9}},
            "npu1: 59.9 GB are free for /var/lib/docker, where do",
        ),
        ({"clock": command("chronyc -c tracking", late)}, "npu1: its clock is off by -2.500 s, expected at most 1.0 s"),
        ({"clock": command("chronyc", rc=124)}, "npu1: its clock cannot be checked (`chronyc` did not end within 5 s)"),
        ({"clock": command("chronyc", rc=127)}, "npu1: its clock cannot be checked (chronyc is not on this host)"),
    ):
        (problem,) = problems(**changes)
        assert problem.startswith(sentence) and problem.endswith("."), problem


def test_kernels_that_are_upgraded_unasked(tmp_path, monkeypatch, capsys):
    """Runs the real programs of apt and dpkg with settings of the test, and stand-ins for systemctl and dnf."""
    apt, dpkg = tmp_path / "apt.conf", tmp_path / "status"
    monkeypatch.setenv("APT_CONFIG", str(apt))
    monkeypatch.setenv("DPKG_ADMINDIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program(tmp_path / "dnf", '[ "$*" = "--cacheonly --quiet versionlock list" ]')

    def upgrades(unasked, state="install", running="apt-daily-upgrade"):
        apt.write_text(f'Dir::Etc::main "none"; Dir::Etc::parts "none";\n{unasked}\n')
        stanza = "Package: {}\nStatus: {} ok installed\nArchitecture: all\nVersion: 1\nMaintainer: m\nDescription: d\n"
        names = ["linux-image-5.0-1-old", "linux-image-amd64"]
        dpkg.write_text("\n".join(stanza.format(name, state) for name in names))
        program(tmp_path / "systemctl", f"case $* in *{running}.timer*) echo active ;; *) echo inactive ;; esac")
        with patch_module_args({}), pytest.raises(SystemExit):
            host_info.main()
        return json.loads(capsys.readouterr().out)["kernel_upgrades"]

    if not shutil.which("apt-config"):
        pytest.skip("needs apt")
    asks = 'APT::Periodic::Unattended-Upgrade "1";'
    assert upgrades(asks) == {"by": "unattended-upgrades", "hold": "apt-mark hold linux-image-amd64"}
    assert upgrades(asks, state="hold") is None
    assert upgrades(asks + 'Unattended-Upgrade::Package-Blacklist { "linux-"; };') is None
    assert upgrades(asks, running="other") is None
    assert upgrades('APT::Periodic::Unattended-Upgrade "0";') is None
    locks = {"by": "dnf-automatic", "hold": "dnf versionlock add kernel"}
    assert upgrades("", running="dnf-automatic-install") == locks
    program(tmp_path / "dnf", "echo 'kernel-0:5.10.0-216.oe2203sp4.*'")
    assert upgrades("", running="dnf-automatic-install") is None


def test_the_ends_of_each_range_are_tried_between_hosts():
    assert preflight.tried_ports(["6379", "64021-64148"]) == [6379, 32768, 60999, 64021, 64148]


def test_hosts_that_send_packets_of_other_sizes():
    jumbo = {"ansible_facts": {"ansible_bond0_7": {"mtu": 9000}}}
    facts = {"a": FACTS, "b": jumbo, "c": FACTS, "d": {"ansible_facts": {}}}
    interfaces = dict.fromkeys("abcd", "bond0.7")
    (problem,) = preflight.mtu_problems(facts, interfaces)
    said = "the MTU of cluster_interface differs between hosts (1500 on a, c; 9000 on b), expected the same on all: "
    assert problem.startswith(said)
    assert preflight.mtu_problems({"a": FACTS, "c": FACTS}, interfaces) == []
    other = {"ansible_facts": {"ansible_eth0": {"mtu": 9000}, "ansible_bond0_7": {"mtu": 1500}}}
    assert len(preflight.mtu_problems({"a": FACTS, "b": other}, {**interfaces, "b": "eth0"})) == 1


def test_what_provisioning_mends_is_no_error_before_it():
    bare = command("chronyc -c tracking", rc=127)
    assert problems(clock=bare, want={**WANT, "provisioned": False}) == []
    assert problems(listening={"6379": ["10.0.0.1"]}, want={**WANT, "unit_active": True}) == []


@pytest.mark.parametrize(
    ("ray", "answer", "sentence"),
    [
        ("inactive", """echo '{"ranks": 32, "gb_s": 90.5}'""", "The all-reduce over 32 dies reaches 90.5 GB/s"),
        ("failed", """echo '{"ranks": 32, "gb_s": 79.9}'""", "over 32 dies reaches 79.9 GB/s, expected at least 80.0"),
        (
            "inactive",
            "echo RuntimeError: EI0006 >&2; exit 1",
            "h1: the all-reduce over 32 dies failed (RuntimeError: EI0006)",
        ),
        ("active", "exit 1", ""),
    ],
)
def test_all_reduce_gate(play, ray, answer, sentence, tmp_path):
    """Each host starts its ranks, and the first host reports the rate. While Ray is active, nothing is measured."""
    program(tmp_path / "systemctl", f"echo {ray}")
    program(tmp_path / "in-env", f'echo "$@" >>{tmp_path}/words\n{answer}')
    hosts = {f"h{n}": {"cluster_address": f"10.0.0.{n}"} for n in (1, 2)}
    values = {"dies_per_host": 16, "npu_preflight_in_env": f"{tmp_path}/in-env", "npu_preflight_all_reduce_gb_s": 80.0}
    values["recipe_settings"] = {"recipe": {"cluster": {"hccl_ports": "64021-64148"}}}
    check = {"tasks": [{"include_role": {"name": "npu_preflight", "tasks_from": "all_reduce"}}]}
    status, said = play([check], hosts=hosts, path=str(tmp_path), **values)
    assert status == (0 if "The all" in sentence or not sentence else 2) and sentence in said, said
    words = (tmp_path / "words").read_text().splitlines() if sentence else []
    assert sorted(line.partition("--node-rank=")[2][:1] for line in words) == ["0", "1"][: len(words)]
    expected = "npu env HCCL_CONNECT_TIMEOUT=300 HCCL_HOST_SOCKET_PORT_RANGE=64021-64148 "
    expected += "HCCL_NPU_SOCKET_PORT_RANGE=64021-64148 timeout "
    assert all(line.startswith(expected) and "--master-addr=10.0.0.1 --master-port=20009 " in line for line in words)
    assert all("--nnodes=2 " in line and "--nproc-per-node=16 " in line for line in words)
