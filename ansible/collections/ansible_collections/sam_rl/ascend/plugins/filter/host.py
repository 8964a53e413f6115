# SPDX-License-Identifier: Apache-2.0
"""Filters that read the output of commands on a host, or write text for systemd units."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

MIN_FREE_GB = 1
"""Free GB of a failed run's disk below which the full disk is reported as the reason."""

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "$": "$$", "%": "%%"})


def systemd_word(text: str) -> str:
    """Return one argument of a command in a unit, quoted, so that systemd expands nothing in it."""
    return f'"{str(text).translate(ESCAPES)}"'


def sysctl_changes(printed: str, expected: Mapping[str, str]) -> list[list[str]]:
    """Return [name, expected value] of each setting whose value in `sysctl` output differs from `expected`."""
    changes = []
    for name, value in re.findall(r"^([\w.]+) *= *(.*?) *$", printed, re.MULTILINE):
        same = ports_in if name.endswith("_reserved_ports") else str
        if name in expected and same(value) != same(str(expected[name])):
            changes.append([name, str(expected[name])])
    return changes


def site_ports(printed: str) -> str:
    """Return the ports that the site itself reserves, from the lines `now:`, `site:` and `written:` of role host_base.

    Ports that the kernel reserves now and that the role did not write are the site's, too.
    """
    lines = dict(re.findall(r"^(\w+): *(.*?) *$", printed, re.MULTILINE))
    now, site, written = (ports_in(lines.get(name, "")) for name in ("now", "site", "written"))
    return ranges(now - written | site)


def joined_ports(values: Iterable[str]) -> str:
    """Return the union of several values of net.ipv4.ip_local_reserved_ports, in the kernel's format."""
    return ranges(set().union(*map(ports_in, values)))


def ranges(numbers: set[int], comma: str = ",") -> str:
    """Return numbers in the kernel's format, such as "1-3,8"."""
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    return comma.join(f"{a}-{b}" if a != b else str(a) for a, b in zip(firsts, lasts, strict=True))


def ports_in(value: str) -> set[int]:
    """Return the ports in text such as "777,20000-20990", in any order; the kernel sorts and joins them."""
    ranges = [part.partition("-") for part in value.split(",") if part]
    return {port for first, _, last in ranges for port in range(int(first), int(last or first) + 1)}


def tree_problems(printed: str, host: str, pins: Mapping, needed: list[str]) -> list[str]:
    """Return a sentence for each unpatched module, and each missing module in `needed`, by `patchset status --json`."""
    try:
        states = json.loads(printed.strip().splitlines()[-1])[pins["name"]]
    except (ValueError, KeyError, IndexError):
        return [f"{host}: `patchset status` printed nothing that can be read: run patches/patchset status there."]
    problems = []
    for name, state in states.items():
        tree = pins["module"][name]["recorded"]["patched_tree"]
        if state != "patched" and (state != "not installed" or name in needed):
            problems.append(
                f"{host}: {name} is {state}, expected tree {tree[:12]} of pin set {pins['name']} (patched): "
                "remove the environment or image and run playbooks/provision.yml."
            )
    return problems


def ray_problems(printed: str, expected: Mapping[str, str], dies: int) -> list[str]:
    """Return a sentence for each problem in the output of ray_nodes.py. expected: {host: address}; dies: per host."""
    try:
        nodes = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return [
            "Ray's head lets no job start: see `journalctl -u sam-rl-ray` on it, then `systemctl restart sam-rl-ray`."
        ]
    alive = {node["address"]: node["npu"] for node in nodes if node["alive"]}
    problems = []
    for host, address in expected.items():
        if address not in alive:
            problems.append(f"{host}: Ray has no living node at {address}: see `journalctl -u sam-rl-ray` on the host.")
        elif alive[address] != dies:
            problems.append(
                f"{host}: Ray has {alive[address]:g} NPU at {address}, expected {dies}: restart sam-rl-ray there."
            )
    for address in set(alive) - set(expected.values()):
        problems.append(f"Ray has a node at {address}, which is not among npu_hosts: stop Ray there.")
    return problems


def goes_on(end: Mapping, before: int, tried: int, retries: int) -> bool:
    """Return True if a failed run is to be resumed: it has lost a host, or finished more steps since its start.

    end: result of follow_job; before: newest finished step at the start. After `systemctl stop`, or with a full disk,
    the user has to act first.
    """
    if end["outcome"] == "timeout" or int(tried) >= int(retries):
        return False
    if end["outcome"] == "ended" and end["result"] in ("success", "stopped"):
        return False
    if end["lost"]:
        return True
    return end["step"] > before and end["free_gb"] is not None and end["free_gb"] >= MIN_FREE_GB


def replacements(lost: list[str], hosts: list[str], spares: list[str], hostvars: Mapping) -> list[dict[str, Any]]:
    """Return [{host, spare, variables}] for the lost hosts, as long as there are spares whose address no host has.

    variables: settings that let the host's name stand for the spare's machine.
    """

    def address(name: str) -> str:
        return str(hostvars[name].get("ansible_host", name))

    used = {address(host) for host in hosts}
    free = [spare for spare in spares if address(spare) not in used]
    names = ("cluster_address", "cluster_interface")
    return [
        {
            "host": host,
            "spare": spare,
            "variables": {
                "ansible_host": address(spare),
                **{name: hostvars[spare].get(name, hostvars[host][name]) for name in names},
            },
        }
        for host, spare in zip(lost, free, strict=False)
    ]


def run_problem(end: Mapping, host: str, folder: str, timeout: int) -> str:
    """Return a sentence on how a run failed. end: the result of follow_job; its `without_folder`: the hosts
    that no longer have the run's folder."""
    run = f"{host}: the run {folder.rpartition('/')[2]}"
    ended = "was stopped" if end["outcome"] == "lost" else "ended"
    if end["without_folder"]:
        return (
            f"{run} {ended} because {', '.join(end['without_folder'])} no longer has {folder}, expected the storage "
            "that all hosts share: mount it again there, then run playbooks/cluster.yml and playbooks/train.yml, which "
            "continue from the last checkpoint."
        )
    if end["lost"]:
        return (
            f"{run} {ended} because Ray on {', '.join(end['lost'])} no longer answers, expected all hosts of "
            "npu_hosts: see `journalctl -u sam-rl-ray` there, then run playbooks/cluster.yml and playbooks/train.yml, "
            "which continue from the last checkpoint."
        )
    if end["outcome"] == "timeout":
        return (
            f"{run} still runs after {timeout} s, expected its end within recipe_launch_timeout: "
            "run playbooks/train.yml again to follow it."
        )
    if end["result"] == "stopped":
        return (
            f"{run} was ended by signal {end['status'] % 128} (15: `systemctl stop`), expected its own end: "
            "run playbooks/train.yml, which continues from the last checkpoint."
        )
    if end["free_gb"] is None:
        return (
            f"{run} ended because {host} no longer has {folder}, expected the storage that all hosts share: mount it "
            "again, then run playbooks/cluster.yml and playbooks/train.yml, which continue from the last checkpoint."
        )
    if end["free_gb"] < MIN_FREE_GB:
        return (
            f"{run} ended with {end['result']}, status {end['status']}, and the disk of {folder} is full "
            f"({end['free_gb']:.1f} GB free): free some, or lower checkpoints.keep where it is above 2; "
            "playbooks/train.yml then continues from the last checkpoint."
        )
    return (
        f"{run} ended with {end['result']}, status {end['status']}, expected status 0: see its last lines above and "
        f"{folder}/launch.log; playbooks/train.yml then continues from the last checkpoint."
    )


def target_problems(answer: str, head: str) -> list[str]:
    """Return a sentence for each exporter without metrics; `answer` is Prometheus's answer to /api/v1/targets."""
    try:
        targets = json.loads(answer)["data"]["activeTargets"]
    except (ValueError, LookupError, TypeError):
        return [f"{head}: Prometheus does not answer: see `journalctl -u sam-rl-prometheus` there."]
    units = {"hosts": "sam-rl-node-exporter", "npus": "sam-rl-npu-exporter"}
    return [
        f"{target['labels']['host']}: Prometheus on {head} gets no metrics from {target['scrapeUrl']} "
        f"({target['lastError'] or 'not asked yet'}): see `journalctl -u {units[target['labels']['job']]}` on the host."
        for target in targets
        if target["labels"]["job"] in units and target["health"] != "up"
    ]


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {
            "systemd_word": systemd_word,
            "sysctl_changes": sysctl_changes,
            "site_ports": site_ports,
            "joined_ports": joined_ports,
            "tree_problems": tree_problems,
            "ray_problems": ray_problems,
            "goes_on": goes_on,
            "replacements": replacements,
            "run_problem": run_problem,
            "target_problems": target_problems,
        }
