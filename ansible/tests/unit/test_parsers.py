# SPDX-License-Identifier: Apache-2.0
"""The parsers of npu-smi, hccn_tool and chronyc read each field, refuse bad output with a reason, and never crash."""

import npu_outputs
import pytest
from ansible_collections.sam_rl.ascend.plugins.module_utils import host_state, npu
from hypothesis import given, settings
from hypothesis import strategies as st

PARSERS = {
    "info": (npu.parse_info, npu_outputs.info()),
    "spod": (npu.parse_spod, npu_outputs.SPOD),
    "spod table": (npu.parse_spod, npu_outputs.SPOD_TABLE),
    "ip": (npu.parse_ip, npu_outputs.IP),
    "board": (npu.parse_board, npu_outputs.BOARD),
    "faults": (npu.parse_faults, npu_outputs.HEALTH),
    "vnic": (npu.parse_vnic, npu_outputs.VNIC),
    "link": (lambda text: npu.parse_status(text, "link status"), npu_outputs.LINK),
    "tls": (npu.parse_tls, npu_outputs.TLS),
    "ping": (npu.parse_ping, npu_outputs.PING),
    "chrony": (host_state.parse_chrony, npu_outputs.CHRONY),
}


def test_info():
    version, dies = npu.parse_info(npu_outputs.info(phy5={"health": "Alarm", "hbm_used": 40000}))
    assert version == "26.0.rc1"
    assert [die["phy"] for die in dies] == list(range(16))
    assert [(die["npu"], die["chip"]) for die in dies[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert (dies[5]["health"], dies[5]["hbm_used_mb"], dies[5]["hbm_total_mb"]) == ("Alarm", 40000, 65536)
    assert dies[4]["health"] == "OK"


def test_info_with_further_columns_and_without_spaces():
    text = npu_outputs.info(1).replace("3143 / 65536", "3143/65536").replace("|\n", "| new |\n")
    assert npu.parse_info(text)[1][0]["hbm_used_mb"] == 3143


def test_info_of_dies_that_say_little():
    text = npu_outputs.info(2, phy1={"hbm_used": "NA", "hbm_total": "NA"}).replace("Ascend910 ", "Ascend 910")
    first, second = npu.parse_info(text)[1]
    assert (first["name"], first["hbm_used_mb"]) == ("Ascend 910", 3143)
    assert (second["hbm_used_mb"], second["hbm_total_mb"]) == (None, None)


@pytest.mark.parametrize("text", [npu_outputs.SPOD, npu_outputs.SPOD_TABLE])
def test_spod(text):
    assert npu.parse_spod(text) == {"sdid": 0x400001, "super_pod_size": 384, "super_pod_id": 3, "server_index": 1}


def test_small_outputs():
    assert npu.parse_faults(npu_outputs.HEALTH) == ""
    assert npu.parse_faults("Error Code : 8\nFaults : x, y\n") == "8, x, y"
    assert npu.parse_board(npu_outputs.BOARD) == {"firmware": "7.8.0.6.201", "compatibility": "OK"}
    assert npu.parse_ip(npu_outputs.IP) == "10.2.0.100"
    conf = "address_0=10.2.0.100\nnetmask_0=255.255.255.0\n# address_1=1\naddress_15 = 10.2.0.115\n"
    assert npu.parse_hccn_conf(conf) == {0: "10.2.0.100", 15: "10.2.0.115"}
    assert npu.parse_vnic(npu_outputs.VNIC) == {"up": True, "ip": "192.168.2.199"}
    assert npu.parse_vnic("vnic link status: DOWN\nvnic ipaddr: \n") == {"up": False, "ip": None}
    assert npu.parse_status("net health status: Receive timeout\n", "net health status") == "Receive timeout"
    assert npu.parse_tls(npu_outputs.TLS) == 0 and npu.parse_tls(npu_outputs.TLS.replace("[0](", "[1](")) == 1
    assert npu.parse_ping(npu_outputs.PING) == (3, 3)
    assert npu.parse_ping("3 packets transmitted, 1 received, 66.67% packets loss") == (3, 1)
    assert host_state.parse_chrony(npu_outputs.CHRONY) == -0.000012


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("info", "", "no version, but: nothing"),
        ("info", "dcmi module initialize failed. ret is -8005\n", "no version, but: dcmi module initialize failed."),
        ("info", npu_outputs.info(0), "listed no die"),
        ("info", npu_outputs.info(2).replace("Phy-ID", "      "), "no column Phy-ID, expected the table of Atlas A3"),
        ("info", "\n".join(npu_outputs.info().splitlines()[:13]), "in the middle of NPU 1"),
        ("spod", npu_outputs.SPOD.replace("SDID", "XDID"), "no `sdid`"),
        ("spod", npu_outputs.SPOD.replace("384", "many"), "`super pod size` as 'many', not a number"),
        ("board", "Compatibility : OK\n", "no `firmware version`"),
        ("ip", "ipaddr:\n", "no ipaddr"),
        ("vnic", "command not supported", "no link status"),
        ("tls", "dev_id:0, [pub cert] info:", "no tls switch"),
        ("ping", "send failed", "no count of packets"),
        ("chrony", "506 Cannot talk to daemon", "14 fields"),
        ("chrony", npu_outputs.CHRONY.replace("Normal", "Not synchronised"), "not synchronised"),
    ],
)
def test_reasons(name, text, reason):
    with pytest.raises(host_state.Unreadable, match=reason.replace("(", "\\(")):
        PARSERS[name][0](text)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_input_crashes(name, data):
    """For cut, repeated, overwritten or random output, a parser returns a result or raises Unreadable with a reason."""
    parser, good = PARSERS[name]
    place = st.integers(0, len(good))
    cut = st.builds(lambda a, b: good[: min(a, b)] + good[max(a, b) :], place, place)
    edit = st.builds(lambda at, new: good[:at] + new + good[at + len(new) :], place, st.text(max_size=9))
    try:
        parser(data.draw(st.one_of(cut, edit, st.text(max_size=200), st.just(good * 2))))
    except host_state.Unreadable as reason:
        assert 10 < len(str(reason)) < 400 and "\n" not in str(reason)


def test_kernels_that_upgrades_bring():
    """The result has the running kernel's package and the meta package, but no older kernel and no held package."""
    text = "ii  linux-image-6.8.0-49-generic\nii  linux-image-6.8.0-50-generic\nii  linux-image-generic-hwe-24.04\n"
    meta, running = "linux-image-generic-hwe-24.04", "linux-image-6.8.0-50-generic"
    assert host_state.parse_kernels(text, "6.8.0-50-generic", []) == [running, meta]
    held = text.replace(f"ii  {meta}", f"hi  {meta}")
    assert host_state.parse_kernels(held, "6.8.0-50-generic", ["linux-image-6", "vim"]) == []
    assert host_state.parse_kernels("rc  linux-image-amd64\n", "6.1.0-1-amd64", []) == []


@pytest.mark.parametrize(
    ("text", "locked"),
    [
        ("kernel-0:5.10.0-216.0.0.115.oe2203sp4.*\n", True),
        ("bash-0:5.1-1.*\nkernel-core-0:5.14.0-503.el9.*\n", True),
        ("# Added by 'versionlock add' command\nPackage name: kernel\nevr = 6.12.1-1\n", True),
        ("[main]\nexcludepkgs=vim kernel*\n", True),
        ("kernel-headers-0:5.10.0-216.*\n!kernel-0:5.10.0-217.*\n[main]\nexclude=kernel-tools\n", False),
        ("", False),
    ],
)
def test_locks_of_dnf(text, locked):
    assert host_state.parse_locked(text) is locked


def test_ufw():
    assert host_state.parse_ufw("# on\nENABLED=yes\nLOGLEVEL=low\n")
    assert not host_state.parse_ufw("ENABLED=no\n#ENABLED=yes")


def test_listening():
    text = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 0B00E70A:18EB 00000000:0000 0A 00000000\n   1: 00000000:0016 00000000:0000 01 0\n garbage\n"
    )
    assert host_state.parse_listening(text) == {6379: ["10.231.0.11"]}
    six = "x\n 0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0\n"
    assert host_state.parse_listening(six) == {8080: ["::1"]}
