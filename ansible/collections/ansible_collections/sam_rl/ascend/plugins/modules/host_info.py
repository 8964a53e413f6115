#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read the state of a host, other than its dies, that preflight checks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Free space, listening ports, address and MTU, reachable peers, clock and container engine of a host
options:
  paths: {description: Folders whose file system's free space is asked for, type: list, elements: path, default: []}
  interface: {description: Interface whose IPv4 address is asked for, type: str, required: true}
  peers: {description: "Hosts to reach: address, port", type: list, elements: dict, default: []}
  clock_command: {description: "Command that prints what C(chronyc -c tracking) does", type: list, elements: str, required: true}
  engine: {description: "Container engine whose folder of images is asked for too: docker, podman or none", type: str, default: none}
  timeout: {description: Bound of the command and of a connection in seconds, type: int, default: 5}
author: [the authors of this repository]
"""
EXAMPLES = r"""
- name: Read the host
  sam_rl.ascend.host_info:
    interface: eth0
    paths: [/data]
    clock_command: [chronyc, -c, tracking]
"""
RETURN = r"""
free_gb: {description: Free GB by path, type: dict, returned: always}
listening: {description: Addresses that are listened on by port, type: dict, returned: always}
address: {description: The interface's address or null, type: str, returned: always}
mtu: {description: "Bytes of the interface's largest packet or null", type: int, returned: always}
engine_root: {description: "Where the engine keeps images, which free_gb has too; null without an engine or an answer", type: str, returned: always}
engine_problem: {description: Why the engine gives no answer or null, type: str, returned: always}
unreachable_peers: {description: "address, reason", type: list, elements: dict, returned: always}
clock_offset: {description: Seconds ahead of the time source or null, type: float, returned: always}
clock_missing: {description: Whether the command is not there, type: bool, returned: always}
clock_problem: {description: Why there is no offset or null, type: str, returned: always}
nofile: {description: Hard limit of open files of new processes, type: int, returned: always}
"""

import concurrent.futures
import fcntl
import resource
import socket
import struct
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import (
    Unreadable,
    free_gb,
    parse_chrony,
    parse_listening,
    reachable,
)

SIOCGIFADDR = 0x8915


def address_of(interface):
    """IPv4 address of an interface, None where it is missing or has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def clock(command, timeout):
    """(offset in seconds or None, whether the command is missing, why there is no offset or None)."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    except FileNotFoundError:
        return None, True, f"{command[0]} is not on this host"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, False, f"`{' '.join(command)}` failed ({type(error).__name__})"
    if done.returncode != 0:
        output = " ".join(done.stdout.decode("utf-8", "replace").split())[:120]
        return (
            None,
            False,
            f"`{' '.join(command)}` ended with status {done.returncode} and printed: {output or 'nothing'}",
        )
    try:
        return parse_chrony(done.stdout.decode("utf-8", "replace")), False, None
    except Unreadable as reason:
        return None, False, str(reason)


def mtu_of(interface):
    try:
        with open(f"/sys/class/net/{interface}/mtu") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def engine_root(engine, timeout):
    """(where the engine keeps its images or None, why it does not answer or None)."""
    if engine == "none":
        return None, None
    command = [engine, "info", "--format", "{{.DockerRootDir}}" if engine == "docker" else "{{.Store.GraphRoot}}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except FileNotFoundError:
        return None, f"there is no {engine}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"`{engine} info` failed ({type(error).__name__})"
    root = done.stdout.strip()
    if done.returncode != 0 or not root.startswith("/"):
        return None, f"`{engine} info` says: {' '.join((done.stderr or done.stdout).split())[:120] or 'nothing'}"
    return root, None


def listening():
    found = {}
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
            "interface": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "clock_command": {"type": "list", "elements": "str", "required": True},
            "engine": {"type": "str", "default": "none"},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    timeout = module.params["timeout"]
    offset, missing, problem = clock(module.params["clock_command"], timeout)
    root, root_problem = engine_root(module.params["engine"], 6 * timeout)
    paths = module.params["paths"] + ([root] if root else [])
    peers = [(str(peer["address"]), int(peer["port"])) for peer in module.params["peers"]]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda peer: reachable(*peer, timeout), peers))
    lost = [{"address": peer[0], "reason": reason} for peer, reason in zip(peers, answers) if reason]
    module.exit_json(
        changed=False,
        free_gb={path: round(free_gb(path), 1) for path in paths},
        listening=listening(),
        address=address_of(module.params["interface"]),
        mtu=mtu_of(module.params["interface"]),
        engine_root=root,
        engine_problem=root_problem,
        unreachable_peers=lost,
        clock_offset=offset,
        clock_missing=missing,
        clock_problem=problem,
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )


if __name__ == "__main__":
    main()
