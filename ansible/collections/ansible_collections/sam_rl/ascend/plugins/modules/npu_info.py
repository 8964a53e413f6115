#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read the state of all dies of a host in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: npu_info
short_description: State of the Ascend dies of a host, with named errors and warnings
description:
  - Calls npu-smi and hccn_tool, all dies in parallel and each call bounded in time, and returns what they say.
  - Never fails because of a die. What is wrong is in C(errors) and C(warnings); the caller decides.
options:
  dies: {description: How many dies the host must have, type: int, required: true}
  npu_smi: {description: Name or path of npu-smi, type: str, default: npu-smi}
  hccn_tool: {description: Name or path of hccn_tool, type: str, default: hccn_tool}
  hccn_conf: {description: Its configuration file, type: path, default: /etc/hccn.conf}
  accepted_health: {description: Other health states than OK to warn of alone, type: list, elements: str, default: []}
  ping:
    description: Addresses to reach over HCCS, one for each die by physical id. With it only these pings are made.
    type: dict
    default: {}
"""
RETURN = r"""
version: {description: Version of the driver as npu-smi says it, or null, type: str, returned: always}
dies: {description: One entry a die, by physical id, type: list, elements: dict, returned: always}
errors: {description: "What must stop a run: code, sentence, die", type: list, elements: dict, returned: always}
warnings_found: {description: What an operator should know, type: list, elements: dict, returned: always}
"""

import concurrent.futures
import contextlib
import functools
import os
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule, get_bin_path
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import Unreadable
from ansible_collections.sam_rl.ascend.plugins.module_utils.npu import (
    SMI_HINT,
    check_dies,
    check_host,
    parse_board,
    parse_faults,
    parse_hccn_conf,
    parse_info,
    parse_ip,
    parse_ping,
    parse_spod,
    parse_status,
    parse_tls,
    parse_vnic,
    problem,
)

TIMEOUT = 30
"""Seconds that one call of a tool may take."""


class Tool:
    """Calls npu-smi or hccn_tool; raises Unreadable if the tool is missing, fails or does not return in time."""

    def __init__(self, name):
        self.name = os.path.basename(name)
        try:
            self.path = get_bin_path(name, opt_dirs=["/usr/local/Ascend/driver/tools"])
        except ValueError:
            self.path = None

    def __call__(self, *words):
        shown = " ".join((self.name,) + words)
        if self.path is None:
            raise Unreadable(f"{self.name} is not on this host")
        try:
            done = subprocess.run(
                (self.path,) + words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise Unreadable(f"`{shown}` did not end within {TIMEOUT} s") from None
        except OSError as error:
            raise Unreadable(f"`{shown}` cannot be run ({error.strerror})") from None
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            output = " ".join(text.split())[:160] or "nothing"
            raise Unreadable(f"`{shown}` ended with status {done.returncode} and printed: {output}")
        return text


def die_state(die, smi, hccn, configured):
    """Add the state of a die to the dict `die`; return (errors, warnings). configured: address in hccn.conf or None."""
    errors: list[dict] = []
    warnings: list[dict] = []
    phy = die["phy"]

    def read(code, hint, sink, action):
        try:
            return action()
        except Unreadable as reason:
            sink.append(problem(code, f"die {phy}: {reason}; {hint}", phy))
            return None

    words = ("info", "-t", "spod-info", "-i", str(die["npu"]), "-c", str(die["chip"]))
    die.update(read("spod_unreadable", SMI_HINT, errors, lambda: parse_spod(smi(*words))) or {})
    if not die["chip"]:  # the dies of a module share their firmware
        call = ("info", "-t", "board", "-i", str(die["npu"]))
        board = read("firmware_unreadable", SMI_HINT, warnings, lambda: parse_board(smi(*call)))
        die["firmware"] = board["firmware"] if board else None
        if board and board["compatibility"].upper() not in ("", "OK", "NA"):
            sentence = f"NPU {die['npu']}: the compatibility of driver and firmware {board['firmware']} is "
            sentence += f"{board['compatibility'][:40]!r}, expected OK: install both of one release, restart the host"
            sink = warnings if board["compatibility"].upper() == "UNKNOWN" else errors
            sink.append(problem("firmware_incompatible", sentence))
    number = ("-i", str(phy))
    hint = "check the driver and /etc/hccn.conf"
    vnic = read("vnic_unreadable", hint, errors, lambda: parse_vnic(hccn(*number, "-vnic", "-g")))
    if vnic:
        die.update(vnic_up=vnic["up"], vnic_ip=vnic["ip"])
        if not vnic["up"] or not vnic["ip"]:
            found = "has no address" if vnic["up"] else "is DOWN"
            sentence = f"die {phy}: its vnic {found}, expected UP with an address: check /etc/hccn.conf and the switch"
            errors.append(problem("vnic_down", sentence, phy))
    if configured:
        address = read("ip_unreadable", hint, warnings, lambda: parse_ip(hccn(*number, "-ip", "-g")))
        if address not in (None, configured):
            sentence = f"die {phy}: its address is {address} (`hccn_tool -i {phy} -ip -g`), /etc/hccn.conf has "
            sentence += f"{configured}: HCCL then cannot reach the die; write the die's address into the file"
            errors.append(problem("hccn_conf_stale", sentence, phy))
    tls = read("tls_unreadable", hint, errors, lambda: parse_tls(hccn(*number, "-tls", "-g")))
    if tls is not None:
        die["tls"] = tls

    def status(option, label):
        return parse_status(hccn(*number, option, "-g"), label)

    for option, label, good in (("-link", "link status", "UP"), ("-net_health", "net health status", "Success")):
        key = label.replace(" status", "").replace(" ", "_")
        die[key] = read(f"{key}_unreadable", hint, warnings, functools.partial(status, option, label))
        if die[key] and die[key].upper() != good.upper():
            sentence = (
                f"die {phy}: {label} is {die[key][:40]!r}, expected {good}; on A3 this may be so while hccs_ping "
            )
            warnings.append(problem(f"{key}_bad", sentence + "passes: look at it if hccs_ping fails", phy))
    return errors, warnings


def read_host(module, smi, hccn, pool):
    """Return the result of the module for a call without pings."""
    result: dict = {"version": None, "dies": [], "errors": [], "warnings_found": []}
    if smi.path is None:
        sentence = f"{smi.name} was not found, expected the driver of the NPUs: install it (role ascend_driver)"
        result["errors"].append(problem("npu_smi_missing", sentence))
        return result
    try:
        result["version"], dies = parse_info(smi("info"))
    except Unreadable as reason:
        result["errors"].append(problem("npu_smi_unreadable", f"{reason}; {SMI_HINT}"))
        return result
    dies.sort(key=lambda die: die["phy"])
    for die in dies:
        if die["health"].upper() != "OK":
            words = ("info", "-t", "health", "-i", str(die["npu"]), "-c", str(die["chip"]))
            with contextlib.suppress(Unreadable):
                die["faults"] = parse_faults(smi(*words))
    errors, warnings = check_dies(dies, module.params["dies"], module.params["accepted_health"])
    path, configured = module.params["hccn_conf"], {}
    try:
        with open(path) as file:
            configured = parse_hccn_conf(file.read())
    except OSError as error:
        sentence = f"{path} cannot be read ({error.strerror}); HCCL may need the dies' addresses in it: if a run fails "
        warnings.append(problem("hccn_conf_missing", sentence + "to connect, write it with hccn_tool"))
    for more_errors, more_warnings in pool.map(lambda die: die_state(die, smi, hccn, configured.get(die["phy"])), dies):
        errors += more_errors
        warnings += more_warnings
    result["dies"] = dies
    result["errors"] += errors + check_host(dies)
    result["warnings_found"] = warnings
    return result


def ping_one(hccn, phy, address):
    """Ping from one die; return an error or None. Retries if hccn_tool says that the device is occupied."""
    for wait in (1, 3, 0):
        try:
            sent, received = parse_ping(hccn("-i", phy, "-hccs_ping", "-g", "address", address))
            if sent > 0 and received == sent:
                return None
            found = f"{received} of {sent} packets came back"
        except Unreadable as reason:
            found = str(reason)
        if "occupied" not in found:
            break
        time.sleep(wait)
    sentence = (
        f"die {phy}: hccs_ping to {address}: {found}, expected all: check the HCCS cables and the super pod's "
        "set-up; hosts connected by RoCE alone are not supported"
    )
    return problem("hccs_ping_loss", sentence, int(phy) if phy.isdecimal() else None)


def main():
    module = AnsibleModule(
        argument_spec={
            "dies": {"type": "int", "required": True},
            "npu_smi": {"type": "str", "default": "npu-smi"},
            "hccn_tool": {"type": "str", "default": "hccn_tool"},
            "hccn_conf": {"type": "path", "default": "/etc/hccn.conf"},
            "accepted_health": {"type": "list", "elements": "str", "default": []},
            "ping": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    smi, hccn = (Tool(module.params[name]) for name in ("npu_smi", "hccn_tool"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        if module.params["ping"]:
            targets = sorted((str(phy), str(address)) for phy, address in module.params["ping"].items())
            errors = [error for error in pool.map(lambda target: ping_one(hccn, *target), targets) if error]
            module.exit_json(changed=False, version=None, dies=[], errors=errors, warnings_found=[])
        module.exit_json(changed=False, **read_host(module, smi, hccn, pool))


if __name__ == "__main__":
    main()
