#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read facts about a host that the preflight checks need and that no module of Ansible returns."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Free space, listening ports, reachable peers, firewalls and upgrades of the kernel of a host
options:
  paths: {description: Folders whose file system's free space is asked for, type: list, elements: path, default: []}
  peers: {description: Addresses of hosts to reach, type: list, elements: str, default: []}
  ports: {description: Ports at which each of them is tried, type: list, elements: int, default: []}
"""
RETURN = r"""
free_gb: {description: Free GB by path, type: dict, returned: always}
listening: {description: Addresses that are listened on by port, type: dict, returned: always}
unreachable_peers: {description: "address, ports, reason", type: list, elements: dict, returned: always}
firewalls: {description: "firewalld, ufw: those that are active", type: list, elements: str, returned: always}
kernel_upgrades:
  description: What upgrades the kernel unasked (C(by)), and the command against it (C(hold)); or null
  type: dict
  returned: always
"""

import concurrent.futures
import os
import re
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import (
    free_gb,
    parse_kernels,
    parse_listening,
    parse_locked,
    parse_ufw,
    reachable,
)


def said(*words):
    """Return the output of a command, or "" if the program is missing or fails."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def content(path):
    """Return the text of a file, or "" if there is none; a kernel without IPv6 has no tcp6."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def active(*units):
    return "active" in said("systemctl", "show", "--property=ActiveState", "--value", *units).splitlines()


def listening():
    found: dict[str, list[str]] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for port, addresses in parse_listening(content(path)).items():
            found.setdefault(str(port), []).extend(addresses)
    return found


def firewalls():
    """Names of the active firewalls. They may drop packets that role ray_cluster accepts, as all rules apply."""
    states = {"firewalld": active("firewalld.service"), "ufw": parse_ufw(content("/etc/ufw/ufw.conf"))}
    return [name for name, is_active in states.items() if is_active]


def kernel_upgrades():
    """Return {by, hold} if packages are upgraded automatically and the kernel is not on hold, else None."""
    asks = ("apt-config", "dump", "--format", "%v%n")
    if said(*asks, "APT::Periodic::Unattended-Upgrade").strip() not in ("", "0") and active("apt-daily-upgrade.timer"):
        installed = said("dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package}\n", "linux-image*")
        left_alone = said(*asks, "Unattended-Upgrade::Package-Blacklist").split()
        if names := parse_kernels(installed, os.uname().release, left_alone):
            return {"by": "unattended-upgrades", "hold": "apt-mark hold " + " ".join(names)}
    settings = content("/etc/dnf/automatic.conf") + content("/etc/dnf/dnf5-plugins/automatic.conf")
    applies = re.search(r"^ *apply_updates *= *(yes|true|1)\b", settings, re.MULTILINE | re.IGNORECASE)
    if active("dnf-automatic-install.timer", *(("dnf-automatic.timer", "dnf5-automatic.timer") if applies else ())):
        listed = said("dnf", "--cacheonly", "--quiet", "versionlock", "list") + content("/etc/dnf/dnf.conf")
        if not parse_locked(listed):
            return {"by": "dnf-automatic", "hold": "dnf versionlock add kernel"}
    return None


def main():
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
        },
        supports_check_mode=True,
    )

    def ask(target):
        address, port = target
        return target, reachable(address, port, timeout=5)

    lost: dict[tuple[str, str], list[int]] = {}
    targets = [(address, port) for address in module.params["peers"] for port in module.params["ports"]]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for (address, port), reason in pool.map(ask, targets):
            if reason:
                lost.setdefault((address, reason), []).append(port)
    module.exit_json(
        changed=False,
        free_gb={path: round(free_gb(path), 1) for path in module.params["paths"]},
        listening=listening(),
        unreachable_peers=[{"address": key[0], "reason": key[1], "ports": ports} for key, ports in lost.items()],
        firewalls=firewalls(),
        kernel_upgrades=kernel_upgrades(),
    )


if __name__ == "__main__":
    main()
