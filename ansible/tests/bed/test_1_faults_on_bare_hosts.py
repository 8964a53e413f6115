# SPDX-License-Identifier: Apache-2.0
"""Faults stop site.yml with one sentence before anything on a host changes; ansible/tests/unit tests further faults."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator

import pytest
from hosts import Bed, Host
from plays import Site


@dataclasses.dataclass
class Fault:
    """A fault, caused by a context manager, arguments or settings. `sentence` is a pattern of the error message."""

    name: str
    sentence: str
    broken: Callable[[list[Host]], contextlib.AbstractContextManager] | None = None
    words: tuple[str, ...] = ()
    settings: dict = dataclasses.field(default_factory=dict)


def npu(host: int, phy: int | None = None, **changes: object) -> Callable:
    """Change what the tools print about a host, or about one die `phy`; fixture `healthy` restores the state."""

    @contextlib.contextmanager
    def broken(hosts: list[Host]) -> Iterator[None]:
        state = hosts[host].npu()
        (state if phy is None else state["dies"][phy]).update(changes)
        hosts[host].set_npu(state)
        yield

    return broken


@contextlib.contextmanager
def small_disk(hosts: list[Host]) -> Iterator[None]:
    hosts[1].run("mount", "-t", "tmpfs", "-o", "size=64m", "small", "/srv")
    try:
        yield
    finally:
        hosts[1].run("umount", "/srv")


@contextlib.contextmanager
def wrong_clock(hosts: list[Host]) -> Iterator[None]:
    hosts[1].write("etc/sam-bed/clock", "4.25\n")
    yield


@contextlib.contextmanager
def port_taken(hosts: list[Host]) -> Iterator[None]:
    server = ("python3", "-m", "http.server", "--directory", "/srv", "6379")
    hosts[2].run("systemd-run", "--unit=other-program", "--collect", *server)
    hosts[2].until(lambda: 6379 in hosts[2].ports(), "the other program listens")
    try:
        yield
    finally:
        hosts[2].run("systemctl", "stop", "other-program")


@contextlib.contextmanager
def firewall(hosts: list[Host]) -> Iterator[None]:
    """Make a range of ports unreachable by a routing rule; hosts have no packet filter before they are provisioned."""
    rule = ("to", hosts[1].address, "ipproto", "6", "dport", "20000-20989", "unreachable")
    hosts[0].run("ip", "rule", "add", *rule)
    try:
        yield
    finally:
        hosts[0].run("ip", "rule", "delete", *rule)


def large(model: str) -> dict[str, list[str]]:
    """Settings with which the recipe writes a checkpoint of a real model."""
    return {"recipe_launch_overrides": [f"model.path=/models/{model}", "checkpoints.every=1", "steps=1"]}


FAULTS = [
    Fault(
        "dead die", r"bed2: die 5 \(NPU 2 chip 1\) has health 'Critical', expected OK: .+", npu(1, 5, health="Critical")
    ),
    Fault(
        "hccs_ping loss",
        r"bed1: die 3: hccs_ping to 192.168.2.196: 0 of 3 packets came back, expected all: .+",
        npu(0, ping_lost=["192.168.2.196"]),
    ),
    Fault("disk too small", r"bed2: 0.1 GB are free for /srv/sam-rl, expected at least 1 GB: .+", small_disk),
    Fault(
        "no space for checkpoints",
        r"bed1: \S+ GB are free for /srv/sam-rl/runs, expected 2,821 for checkpoints of the run bed \(1 x .+",
        settings=large("Qwen3-235B-A22B"),
    ),
    Fault("clock skew", r"bed2: its clock is off by \+4.250 s, expected at most 1.0 s: .+", wrong_clock),
    Fault("port taken", r"bed3: port 6379 is taken \(a program listens on 0.0.0.0\), expected free: .+", port_taken),
    Fault(
        "ports closed between hosts",
        r"bed1: no answer from 10.231.0.12 at TCP ports 20000, 20989 \(Network is unreachable\), expected the hosts .+",
        firewall,
    ),
    Fault("--limit on one host", r"--limit leaves out bed2, bed3, and .+ needs all 3 .+", words=("--limit", "bed1")),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_site_stops_with_a_sentence_and_changes_nothing(bed: Bed, site: Site, fault: Fault) -> None:
    before = bed.snapshot()
    with fault.broken(bed.hosts) if fault.broken else contextlib.nullcontext():
        result = site.play("site", *fault.words, **fault.settings).must_fail()
    assert re.fullmatch(fault.sentence, result.sentence), result.sentence
    assert result.changed == []
    assert bed.snapshot() == before
    for host in bed.hosts:
        assert not [unit for unit in host.units() if unit.startswith("sam-rl")]


def test_hosts_without_hccn_conf_get_a_warning(bed: Bed, site: Site) -> None:
    for host in bed.hosts:
        (host.root / "etc/hccn.conf").rename(host.root / "etc/hccn.conf.away")
    try:
        result = site.play("preflight").must_pass()
    finally:
        for host in bed.hosts:
            (host.root / "etc/hccn.conf.away").rename(host.root / "etc/hccn.conf")
    assert "/etc/hccn.conf cannot be read (No such file or directory)" in result.output
