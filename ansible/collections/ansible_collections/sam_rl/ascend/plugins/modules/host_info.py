#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read what preflight checks of a host and no module of Ansible tells."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Free space, listening ports and reachable peers of a host
options:
  paths: {description: Folders whose file system's free space is asked for, type: list, elements: path, default: []}
  peers: {description: "Hosts to reach: address, port", type: list, elements: dict, default: []}
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
unreachable_peers: {description: "address, reason", type: list, elements: dict, returned: always}
"""

import concurrent.futures

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import free_gb, parse_listening, reachable


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


def main():
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    timeout = module.params["timeout"]

    def ask(peer):
        address = str(peer["address"])
        return address, reachable(address, int(peer["port"]), timeout)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, module.params["peers"]))
    lost = [{"address": address, "reason": reason} for address, reason in answers if reason]
    free = {path: round(free_gb(path), 1) for path in module.params["paths"]}
    module.exit_json(changed=False, free_gb=free, listening=listening(), unreachable_peers=lost)


if __name__ == "__main__":
    main()
