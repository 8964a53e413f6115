# SPDX-License-Identifier: Apache-2.0
"""Filters that turn the state of hosts into sentences with the host, what was found and expected, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.sam_rl.ascend.plugins.filter.host import ports_in, ranges
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import Unreadable, parse_chrony

MISSING, TIMED_OUT = 127, 124
"""Exit statuses of `timeout` if the program is missing, and if it took too long."""


EPHEMERAL = "32768-60999"
"""Linux's default range of ephemeral ports, which servers of engines and process groups use."""

FIREWALLS = {
    "firewalld": "`firewall-cmd --permanent --zone=trusted --add-source={network} && firewall-cmd --reload`",
    "ufw": "`ufw allow from {network}`",
}
"""Command that lets a network in, by firewall."""


def interface_of(facts: Mapping, interface: str) -> Mapping:
    """Return the facts of a network interface from the result of `setup`; empty if there is no such interface."""
    return facts["ansible_facts"].get("ansible_" + re.sub(r"[-.:]", "_", interface), {})


def command_problem(result: Mapping) -> str:
    """Return why the result of `timeout SECONDS PROGRAM ...` cannot be used, or ""."""
    words = result["cmd"][2:]
    shown = " ".join(words)
    if result["rc"] == MISSING:
        return f"{words[0]} is not on this host"
    if result["rc"] == TIMED_OUT:
        return f"`{shown}` did not end within {result['cmd'][1]} s"
    output = " ".join(f"{result['stdout']} {result['stderr']}".split())[:120] or "nothing"
    return f"`{shown}` ended with status {result['rc']} and printed: {output}" if result["rc"] else ""


def clock_problem(result: Mapping, want: Mapping) -> str | None:
    """Return a sentence on a problem of the clock, or None. result: of `chronyc`; want: see host_problems."""
    offset, reason = None, command_problem(result)
    if not reason:
        try:
            offset = parse_chrony(result["stdout"])
        except Unreadable as error:
            reason = str(error)
    if reason and (want["provisioned"] or result["rc"] != MISSING):
        return (
            f"{want['host']}: its clock cannot be checked ({reason}), expected a clock synchronised by chrony: "
            "start chronyd and give it a time server (host_base_time_servers)."
        )
    if offset is not None and abs(offset) > want["clock_limit"]:
        return (
            f"{want['host']}: its clock is off by {offset:+.3f} s, expected at most {want['clock_limit']} s: "
            "see `chronyc sources`, then `chronyc makestep`."
        )
    return None


def host_problems(state: Mapping, facts: Mapping, clock: Mapping, engine: Mapping, want: Mapping) -> list[str]:
    """Return sentences on the problems of a host.

    state: result of host_info; facts: result of `setup`; clock: result of `chronyc`; engine: result of the command that
    prints the engine's folder of images; want: host, interface, address, network, free_gb {path: GB}, engine, engine_gb
    (0: any), ports ["PORT", "FIRST-LAST", ..], unit_active, clock_limit, provisioned, firewalls {address: [name, ..]},
    dies (number).
    """
    host, problems = want["host"], []
    address = interface_of(facts, want["interface"]).get("ipv4", {}).get("address")
    if address != want["address"]:
        problems.append(
            f"{host}: interface {want['interface']} has the address {address or 'none'}, expected "
            f"{want['address']}: correct cluster_interface or cluster_address in the inventory, or the host's network."
        )
    reason, folder = command_problem(engine), engine["stdout"]
    if reason or not folder.startswith("/"):
        problems.append(
            f"{host}: {reason or folder or 'no folder'}, expected a {want['engine']} that answers: install and "
            "start it, or correct container_engine in the inventory."
        )
    elif state["free_gb"][folder] < want["engine_gb"]:
        problems.append(
            f"{host}: {state['free_gb'][folder]:.1f} GB are free for {folder}, where {want['engine']} keeps "
            f"images, expected at least {want['engine_gb']} GB: free some, or move that folder to a larger disk."
        )
    for path, min_gb in want["free_gb"].items():
        if state["free_gb"][path] < min_gb:
            problems.append(
                f"{host}: {state['free_gb'][path]:.1f} GB are free for {path}, expected at least {min_gb} GB: "
                "free some, or set the folder to a larger disk in the inventory."
            )
    for port in sorted(map(int, state["listening"])):
        used = [ports for ports in want["ports"] if port in ports_in(ports)]
        if used and not want["unit_active"]:
            listed = ", ".join(state["listening"][str(port)])
            within = f" of {used[0]}" if len(ports_in(used[0])) > 1 else ""
            problems.append(
                f"{host}: port {port}{within} is taken (a program listens on {listed}), expected free: end that "
                "program, or set another port in the inventory."
            )
    for peer in state["unreachable_peers"]:
        active = want["firewalls"].get(peer["address"], [])
        rules = [FIREWALLS[name].format(network=want["network"]) for name in active]
        repair = f"call {' and '.join(rules)} on every host" if rules else "check cabling, routes and firewalls"
        problems.append(
            f"{host}: no answer from {peer['address']} at TCP ports {', '.join(map(str, peer['ports']))} "
            f"({peer['reason']}), expected the hosts of npu_hosts to reach each other at {', '.join(want['ports'])} "
            f"and at ephemeral ports ({EPHEMERAL}): {repair}."
        )
    if (upgraded := state["kernel_upgrades"]) and want["dies"]:
        problems.append(
            f"{host}: {upgraded['by']} may replace the kernel that the driver was built for, expected it on hold: call "
            f"`{upgraded['hold']}` there, and later upgrade kernel and driver together."
        )
    if problem := clock_problem(clock, want):
        problems.append(problem)
    return problems


def tried_ports(ranges: Iterable[str]) -> list[int]:
    """Return the first and the last port of each range that hosts use between each other."""
    return sorted({port for ports in [*ranges, EPHEMERAL] for port in (min(ports_in(ports)), max(ports_in(ports)))})


def peers(hosts: list[str], hostvars: Mapping, port: int) -> list[dict[str, Any]]:
    """Return [{host, address, port}] of the ports at which the hosts are checked."""
    return [{"host": host, "address": hostvars[host]["cluster_address"], "port": port} for host in hosts]


def by_dies(problems: Iterable[Mapping]) -> list[str]:
    """Return the sentences of npu_info's errors or warnings; dies with the same problem share one sentence."""
    dies: dict[str, list[int]] = {}
    for problem in problems:
        text = problem["sentence"]
        if "die" in problem:
            text = text.removeprefix(f"die {problem['die']}")
            dies.setdefault(text, []).append(problem["die"])
        else:
            dies[text] = []
    return [_dies(numbers) + text for text, numbers in dies.items()]


def _dies(numbers: list[int]) -> str:
    """Return text such as `die 3` or `dies 0-3, 8`; "" without dies."""
    return f"die{'s' if len(numbers) > 1 else ''} {ranges(set(numbers), ', ')}" if numbers else ""


def npu_problems(state: Mapping, want: Mapping) -> list[str]:
    """Return sentences on the problems in one result of npu_info.

    want: host, version, firmware ("" for any), installs (whether provisioning installs them).
    """
    host, firmware = want["host"], want["firmware"].lower()
    skip = {"npu_smi_missing", "firmware_incompatible"} if want["installs"] else set()
    problems = [f"{host}: {sentence}." for sentence in by_dies(e for e in state["errors"] if e["code"] not in skip)]
    if state["version"] and state["version"].lower() != want["version"].lower() and not want["installs"]:
        problems.append(
            f"{host}: npu-smi says driver {state['version']}, expected {want['version']} (ascend_driver_version): "
            "set ascend_driver_packages and run playbooks/provision.yml, or correct ascend_driver_version."
        )
    other: dict[str, list[int]] = {}
    for die in state["dies"] if firmware and not want["installs"] else ():
        if "firmware" in die and (die["firmware"] or "").lower() != firmware:
            other.setdefault(die["firmware"] or "none", []).append(die["npu"])
    problems += [
        f"{host}: npu-smi says firmware {found} of NPU {', '.join(map(str, npus))}, expected {want['firmware']} "
        "(ascend_firmware_version): set ascend_driver_packages and run playbooks/provision.yml, or correct "
        "ascend_firmware_version."
        for found, npus in other.items()
    ]
    return problems


def driver_differs(state: Mapping, version: str, firmware: str) -> bool:
    """Whether a host has another driver than `version`, or another firmware than `firmware` ("" allows any).

    state: result of npu_info.
    """
    found = {(die["firmware"] or "").lower() for die in state.get("dies", ()) if "firmware" in die}
    return (state.get("version") or "").lower() != version.lower() or bool(firmware and found != {firmware.lower()})


def across_hosts(states: Mapping[str, Mapping], installs: bool = False) -> list[str]:
    """Return sentences on values that must be unique or equal among hosts but are not.

    states: {host: result of npu_info}; installs: whether provisioning installs driver and firmware.
    """
    problems = []
    owners: dict[Any, str] = {}
    for host, state in states.items():
        for die in state["dies"]:
            where = f"{host} die {die['phy']}"
            for key in ("sdid", "vnic_ip"):
                value = die.get(key)
                if value is None:
                    continue
                other = owners.setdefault((key, value), where)
                if other != where:
                    label = {"sdid": "SDID", "vnic_ip": "vnic address"}[key]
                    problems.append(
                        f"{where}: {label} {value} is that of {other} too, expected unique in the super pod: "
                        "set up the super pod's server indexes and addresses again."
                    )
    for key, label, repair in (
        ("firmware", "the firmware", "install the same by ascend_driver_packages and ascend_firmware_version"),
        ("tls", "tls switch", "set the same value with `hccn_tool -i N -tls -s enable 0` (or 1) on every die"),
        ("super_pod_id", "Super Pod ID", "use hosts of one super pod; super pods joined by RoCE are not supported"),
    ):
        groups: dict[Any, list[str]] = {}
        for host, state in states.items():
            for value in {die[key] for die in state["dies"] if die.get(key) is not None}:
                groups.setdefault(value, []).append(host)
        if len(groups) > 1 and not (installs and key == "firmware"):
            listed = "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in sorted(groups.items()))
            problems.append(f"{label} differs between hosts ({listed}), expected the same on all: {repair}.")
    return problems


def mtu_problems(facts: Mapping[str, Mapping], interfaces: Mapping[str, str]) -> list[str]:
    """Return a sentence if the hosts' MTUs differ: large packets of some hosts would be lost.

    facts: {host: result of setup}; interfaces: {host: name}.
    """
    groups: dict[int, list[str]] = {}
    for host, of_host in facts.items():
        if mtu := interface_of(of_host, interfaces[host]).get("mtu"):
            groups.setdefault(mtu, []).append(host)
    if len(groups) < 2:
        return []
    listed = "; ".join(f"{mtu} on {', '.join(hosts)}" for mtu, hosts in sorted(groups.items()))
    return [
        f"the MTU of cluster_interface differs between hosts ({listed}), expected the same on all: "
        "set one value on them, and on the switches between them."
    ]


def write_rate(hosts: list[str], hostvars: Mapping) -> float | None:
    """Return the GB/s that all hosts write together, from their results of storage_info; None if one has no result."""
    results = [hostvars[host].get("npu_preflight_storage", {}) for host in hosts]
    if not all(result.get("written_gb") for result in results):
        return None
    return round(sum(r["written_gb"] for r in results) / max(r["seconds"] for r in results), 3)


def checkpoint_time(rate: float, want: Mapping) -> str:
    """Return a sentence on the rate of the storage. rate: from write_rate; want: see storage_problems."""
    measured = f"{want['hosts']} hosts write {rate:.3g} GB/s together to {want['folder']}"
    if not (size := want["checkpoint_gb"]):
        return measured
    return f"{measured}: a checkpoint of {size:,.0f} GB takes {size / rate / 60:,.1f} minutes"


def storage_problems(states: Mapping[str, Mapping], rate: float | None, want: Mapping) -> list[str]:
    """Return sentences on problems of the storage. states: {host: result of storage_info}; rate: from write_rate.

    want: run, folder, hosts (number), checkpoint_gb and checkpoints (None: unknown), minutes (maximum per checkpoint).
    """
    folder, size, count = want["folder"], want["checkpoint_gb"] or 0, want["checkpoints"] or 0
    if unwritable := [f"{host} ({state['error']})" for host, state in states.items() if state["error"]]:
        return [f"nothing can be written to {folder} by {', '.join(unwritable)}: repair its file system or access."]
    problems, (host, state) = [], next(iter(states.items()))
    needed = size * count - state["counted_gb"]
    if state["free_gb"] < needed:
        problems.append(
            f"{host}: {state['free_gb']:,.0f} GB are free for {folder}, expected {needed:,.0f} for checkpoints of "
            f"the run {want['run']} ({count} x {size:,.0f} GB): free some, set work_dir to larger storage, or lower "
            "checkpoints.keep where it is above 2."
        )
    if rate and count and size / rate > want["minutes"] * 60:
        problems.append(
            f"{checkpoint_time(rate, want)}, expected at most {want['minutes']:g} (npu_preflight_checkpoint_minutes): "
            "set work_dir to faster storage, or raise that where training may wait so long for each checkpoint."
        )
    return problems


def ping_targets(states: Mapping[str, Mapping], host: str) -> dict[str, str]:
    """Return {physical id: address} of the next host's dies; the first host follows the last. Empty for one host.

    Each die pings the die with its id on the next host, so that together the pings reach every die of the cluster.
    """
    hosts = list(states)
    following = hosts[(hosts.index(host) + 1) % len(hosts)]
    if following == host:
        return {}
    return {str(die["phy"]): die["vnic_ip"] for die in states[following]["dies"] if die.get("vnic_ip")}


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {
            "tried_ports": tried_ports,
            "peers": peers,
            "by_dies": by_dies,
            "host_problems": host_problems,
            "npu_problems": npu_problems,
            "driver_differs": driver_differs,
            "across_hosts": across_hosts,
            "mtu_problems": mtu_problems,
            "ping_targets": ping_targets,
            "write_rate": write_rate,
            "checkpoint_time": checkpoint_time,
            "storage_problems": storage_problems,
        }
