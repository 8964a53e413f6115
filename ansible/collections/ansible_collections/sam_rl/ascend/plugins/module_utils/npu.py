# SPDX-License-Identifier: Apache-2.0
"""Parsers for the output of npu-smi and hccn_tool on Atlas A3, and the checks of one host's dies. No I/O in here.

The formats follow the public documents of the HDK and vllm-ascend's check list for multi-node runs. A parser takes the
text of one command, skips unknown lines, and raises Unreadable with one reason if a field that it needs is missing.
A die is one of the two chips of a module; its physical id (`phy`) is what hccn_tool calls -i.
"""

from __future__ import annotations

import re

from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import Unreadable

SMI_HINT = "run `npu-smi info` on the host, then see the driver's log in /var/log/ascend_seclog"


def _fields(text):
    """Return {label in lower case: value} of `Label : value` pairs, one per line or one per cell of a table."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        for cell in line.split("|"):
            label, colon, value = cell.partition(":")
            if colon and label.strip():
                found.setdefault(" ".join(label.lower().split()), value.strip())
    return found


def _number(fields, label, command):
    """Return the field `label` as a number (decimal or 0x...); raises Unreadable."""
    value = fields.get(label)
    if value is None:
        raise Unreadable(f"{command} printed no `{label}`")
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}", value):
        raise Unreadable(f"{command} printed `{label}` as {value[:40]!r}, not a number")
    return int(value, 16 if value[:2].lower() == "0x" else 10)


def driver_order(version):
    """A sort key for driver versions: 25.0.rc1 < 25.0.RC1.1 < 25.0 = 25.0.0 < 25.0.1; raises Unreadable.

    The part after an rc is its patch (24.1.rc3.7) or build (24.1.rc1.b030, .SPC001).
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.?rc(\d+))?((?:\.[a-z]*\d+)*)", version.lower(), re.ASCII)
    if not found:
        raise Unreadable(f"{version!r} is not a driver version")
    release = [int(number) for number in found[1].split(".")]
    while release and not release[-1]:
        release.pop()
    candidate = int(found[2]) if found[2] else float("inf")
    return release, candidate, [int(number) for number in re.findall(r"\d+", found[3])]


def parse_info(text):
    """`npu-smi info`: (version, [{npu, chip, phy, name, health, hbm_used_mb, hbm_total_mb}]).

    Two lines a die: `| NPU Name | Health | ...`, then `| Chip Phy-ID | Bus-Id | ... used / total |`. Both numbers are
    None where npu-smi prints something else, such as NA.
    """
    found = re.search(r"Version:\s*([0-9A-Za-z][\w.]*)", text)
    if not found:
        said = " ".join(text.split())[:200] or "nothing"
        raise Unreadable(f"`npu-smi info` printed no version, but: {said}")
    if not re.search(r"\|\s*Chip\s+Phy-ID\b", text):
        raise Unreadable("`npu-smi info` printed no column Phy-ID, expected the table of Atlas A3")
    dies, first = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 3:
            continue
        left = cells[0].split()
        if len(left) >= 2 and left[0].isdecimal() and not left[1].isdecimal():
            first = (int(left[0][:9]), " ".join(left[1:]), cells[1])
        elif first and len(left) == 2 and left[0].isdecimal() and left[1].isdecimal():
            memory = re.findall(r"([\w.-]+)\s*/\s*([\w.-]+)", cells[2])
            numbers = bool(memory) and all(re.fullmatch(r"\d{1,9}", number) for number in memory[-1])
            used, total = map(int, memory[-1]) if numbers else (None, None)
            die = {"npu": first[0], "chip": int(left[0][:9]), "phy": int(left[1][:9])}
            dies.append({**die, "name": first[1], "health": first[2], "hbm_used_mb": used, "hbm_total_mb": total})
            first = None
    if first:
        raise Unreadable(f"`npu-smi info` ends in the middle of NPU {first[0]}")
    if not dies:
        raise Unreadable("`npu-smi info` listed no die")
    return found.group(1), dies


def parse_spod(text):
    """`npu-smi info -t spod-info -i N -c C`: {sdid, super_pod_size, super_pod_id, server_index}."""
    fields = _fields(text)
    labels = {name: name.replace("_", " ") for name in ("sdid", "super_pod_size", "super_pod_id", "server_index")}
    return {name: _number(fields, label, "`npu-smi info -t spod-info`") for name, label in labels.items()}


def parse_board(text):
    """`npu-smi info -t board -i N`: {firmware, compatibility}; the latter is "" where npu-smi does not print it."""
    fields = _fields(text)
    if not fields.get("firmware version"):
        raise Unreadable("`npu-smi info -t board` printed no `firmware version`")
    return {"firmware": fields["firmware version"], "compatibility": fields.get("compatibility", "")}


def parse_vnic(text):
    """`hccn_tool -vnic -g`: {up, ip}; `ip` is None where none is set."""
    fields = _fields(text)
    status = fields.get("vnic link status")
    if status is None:
        raise Unreadable("`hccn_tool -vnic -g` printed no link status")
    ip = fields.get("vnic ipaddr", "")
    return {"up": status.upper() == "UP", "ip": ip if re.fullmatch(r"(\d{1,3}\.){3}\d{1,3}", ip) else None}


def parse_faults(text):
    """`npu-smi info -t health -i N -c C`: its error codes and what they mean, "" for none."""
    found = re.findall(r"(?im)^[\s|]*[\w ]*(?:error|fault)[\w ]*:[ \t]*(.*?)[\s|]*$", text)
    return ", ".join(value for value in found if value.upper() not in ("", "NA", "N/A", "NONE", "0"))


def parse_ip(text):
    """`hccn_tool -ip -g`: the die's address."""
    ip = _fields(text).get("ipaddr")
    if not ip:
        raise Unreadable("`hccn_tool -ip -g` printed no ipaddr")
    return ip


def parse_hccn_conf(text):
    """/etc/hccn.conf: {physical id: address} of its lines `address_N=IP`."""
    found = re.findall(r"^\s*address_(\d{1,9})\s*=\s*(\S+)", text, re.MULTILINE)
    return {int(phy): address for phy, address in found}


def parse_status(text, label):
    """`hccn_tool -link -g` (label `link status`) and `-net_health -g` (label `net health status`): the word."""
    status = _fields(text).get(label)
    if not status:
        raise Unreadable(f"hccn_tool printed no {label}")
    return status


def parse_tls(text):
    """`hccn_tool -tls -g`: 0 or 1, out of `tls switch[0](0:disable, 1:enable)`."""
    found = re.search(r"\btls\s+switch\s*\[\s*([01])\s*\]", text, re.IGNORECASE)
    if not found:
        raise Unreadable("`hccn_tool -tls -g` printed no tls switch")
    return int(found.group(1))


def parse_ping(text):
    """`hccn_tool -hccs_ping -g address IP`: (sent, received)."""
    found = re.search(r"(\d{1,9}) packets? transmitted,\s*(\d{1,9}) received", text)
    if not found:
        said = " ".join(text.split())[:200] or "nothing"
        raise Unreadable(f"`hccn_tool -hccs_ping` printed no count of packets, but: {said}")
    return int(found.group(1)), int(found.group(2))


def problem(code, sentence, die=None):
    """Return an entry of `errors` or `warnings`; `die` is a physical id."""
    return {"code": code, "sentence": sentence} if die is None else {"code": code, "sentence": sentence, "die": die}


def _numbers(values):
    return ", ".join(map(str, sorted(values))) or "none"


def check_dies(dies, expected, accepted):
    """Return (errors, warnings) on the dies that npu-smi lists: their number, ids, health and memory in use.

    accepted: health states other than OK that cause only a warning. A die that is not OK may have `faults`.
    """
    errors, warnings = [], []
    ids = [die["phy"] for die in dies]
    missing, extra = set(range(expected)) - set(ids), set(ids) - set(range(expected))
    if len(ids) != expected or missing or extra:
        sentence = f"npu-smi lists {len(ids)} dies (missing: {_numbers(missing)}), expected {expected}: "
        sentence += f"reseat or replace the module, or correct dies_per_host; {SMI_HINT}"
        errors.append(problem("die_count", sentence))
    for die in dies:
        faults = f" ({die['faults'][:200]})" if die.get("faults") else ""
        if die["health"].upper() in (state.upper() for state in accepted):
            sentence = f"die {die['phy']}: health is {die['health']!r}{faults}, expected OK, but such dies may still "
            sentence += "work: repair it if a run fails"
            warnings.append(problem("die_health", sentence, die["phy"]))
        elif die["health"].upper() != "OK":
            sentence = f"die {die['phy']} (NPU {die['npu']} chip {die['chip']}) has health {die['health'][:40]!r}"
            sentence += f"{faults}, expected OK: take the host out of the inventory, repair it, or accept that state "
            sentence += f"(npu_preflight_accepted_health); {SMI_HINT}"
            errors.append(problem("die_health", sentence, die["phy"]))
        if not die["hbm_total_mb"]:
            sentence = f"die {die['phy']} (NPU {die['npu']} chip {die['chip']}) has HBM that npu-smi cannot read, "
            sentence += f"expected its size: restart the host or repair the die; {SMI_HINT}"
            errors.append(problem("hbm_unreadable", sentence, die["phy"]))
        elif die["hbm_used_mb"] * 8 > die["hbm_total_mb"]:
            sentence = f"die {die['phy']} has {die['hbm_used_mb']} of {die['hbm_total_mb']} MB of HBM in use, expected "
            sentence += "about 3000: if the job that uses it is not of this cluster, end it before training"
            warnings.append(problem("hbm_busy", sentence, die["phy"]))
    return errors, warnings


def check_host(dies):
    """Return errors if dies (keys of parse_spod, `tls`) of one host have different server indexes or tls switches."""
    errors = []
    servers = {die["server_index"] for die in dies if "server_index" in die}
    if len(servers) > 1:
        sentence = f"its dies name server indexes {_numbers(servers)}, expected one: set the super pod up again"
        errors.append(problem("server_index", sentence))
    switches = {die["tls"] for die in dies if "tls" in die}
    if len(switches) > 1:
        sentence = "the tls switch is 0 on some dies and 1 on others, expected the same on all: "
        sentence += "set it by `hccn_tool -i N -tls -s enable 0` (or 1) on every die"
        errors.append(problem("tls_mixed", sentence))
    return errors
