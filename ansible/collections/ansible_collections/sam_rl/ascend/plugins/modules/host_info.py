#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read what preflight checks of a host and no module of Ansible tells."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Free space, listening ports, reachable peers and active firewalls of a host
options:
  paths: {description: Folders whose file system's free space is asked for, type: list, elements: path, default: []}
  peers: {description: Addresses of hosts to reach, type: list, elements: str, default: []}
  ports: {description: Ports at which each of them is tried, type: list, elements: int, default: []}
  timeout: {description: Bound of a connection in seconds, type: int, default: 5}
author: [the authors of this repository]
"""
EXAMPLES = r"""
- name: Read the host
  sam_rl.ascend.host_info:
    paths: [/data]
"""
RETURN = r"""
free_gb: {description: Free GB by path, type: dict, returned: always}
listening: {description: Addresses that are listened on by port, type: dict, returned: always}
unreachable_peers: {description: "address, ports, reason", type: list, elements: dict, returned: always}
firewalls: {description: "firewalld, ufw: those that are active", type: list, elements: str, returned: always}
"""

import concurrent.futures

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import (
    free_gb,
    parse_listening,
    parse_ufw,
    reachable,
)


def listening():
    found: dict[str, list[str]] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path) as file:
                for port, addresses in parse_listening(file.read()).items():
                    found.setdefault(str(port), []).extend(addresses)
        except OSError:
            pass  # a kernel without IPv6 has no tcp6
    return found


def firewalls(module):
    """Those that drop what the rules of role ray_cluster let in; they are as strict as the strictest."""
    found = []
    if module.run_command(["systemctl", "is-active", "--quiet", "firewalld.service"])[0] == 0:
        found.append("firewalld")
    try:
        with open("/etc/ufw/ufw.conf") as file:
            if parse_ufw(file.read()):
                found.append("ufw")
    except OSError:
        pass  # not installed
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "peers": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    timeout = module.params["timeout"]

    def ask(target):
        address, port = target
        return target, reachable(address, port, timeout)

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
        firewalls=firewalls(module),
    )


if __name__ == "__main__":
    main()
