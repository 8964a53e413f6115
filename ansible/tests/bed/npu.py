# SPDX-License-Identifier: Apache-2.0
"""What npu-smi and hccn_tool of a simulated host print, from a state that a test edits.

Both are tools of the Ascend HDK; the forms follow outputs of Atlas A3 hosts in public reports and Huawei's documents.
The state is {"version": str, "dies": [{"npu", "chip", "phy", "health", "hbm_used", "hbm_total", "sdid", "vnic_link",
"vnic_ip", "ip", "tls", "link", "net_health", "firmware", "compatibility", "faults" (not always)}, ...],
"super_pod": {"size", "id", "server_index"}, "processes": [{"phy", "pid", "name", "mb"}, ...], "ping_lost": [vnic
address, ...]}. The programs in fakes/ print the file named by their arguments: a check of a host makes about a hundred
calls, and an interpreter would have to start for each.
"""

from __future__ import annotations


def healthy(number: int) -> dict:
    """State of the healthy host `number` (from 0): 8 modules of 2 dies each."""
    dies = []
    for phy in range(16):
        die = {"npu": phy // 2, "chip": phy % 2, "phy": phy, "health": "OK", "hbm_total": 65536}
        die |= {"hbm_used": 2886 if phy % 2 else 3143, "sdid": (number << 22) + (phy // 2 << 18) + phy, "tls": 0}
        die |= {"vnic_link": "UP", "vnic_ip": f"192.168.{number + 1}.{199 - phy}", "link": "DOWN", "net_health": "Init"}
        die |= {"firmware": "7.8.0.6.201", "compatibility": "OK"}
        die["ip"] = f"10.{number + 1}.0.{100 + phy}"
        dies.append(die)
    super_pod = {"size": 384, "id": 0, "server_index": number}
    return {"version": "26.0.rc1", "dies": dies, "super_pod": super_pod, "processes": [], "ping_lost": []}


# ---------------------------------------------------------------- npu-smi

RULE = "+" + "-" * 96 + "+"
HEAD = "+" + "=" * 27 + "+" + "=" * 15 + "+" + "=" * 52 + "+"
COLUMNS = "+" + "-" * 27 + "+" + "-" * 15 + "+" + "-" * 52 + "+"
PROCESS_HEAD = "+" + "=" * 27 + "+" + "=" * 68 + "+"


def row(first: str, second: str, third: str) -> str:
    return f"| {first:<26}| {second:<14}| {third:<51}|"


def table(state: dict) -> str:
    """`npu-smi info`."""
    lines = [RULE, f"| npu-smi {state['version']:<24} Version: {state['version']:<53}|", COLUMNS]
    lines += [row("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)")]
    lines += [row("Chip  Phy-ID", "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"), HEAD]
    for number, die in enumerate(state["dies"]):
        power = "-" if die["chip"] else "178.8"
        hbm = f"{die['hbm_used']:<5}/ {die['hbm_total']}"
        lines += [row(f"{die['npu']:<6}Ascend910", die["health"], f"{power:<12}36                0    / 0")]
        bus = f"0000:{0x9D - 2 * number:02X}:00.0"
        lines += [row(f"{die['chip']:<6}{die['phy']}", bus, f"0           0    / 0          {hbm}")]
        last = number + 1 == len(state["dies"]) or state["dies"][number + 1]["npu"] != die["npu"]
        lines.append(HEAD if last else RULE)
    lines += ["| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"]
    lines.append(PROCESS_HEAD)
    npus = sorted({die["npu"] for die in state["dies"]})
    for npu in npus:
        phys = {die["phy"]: die["chip"] for die in state["dies"] if die["npu"] == npu}
        running = [process for process in state["processes"] if process["phy"] in phys]
        for process in running:
            chip = phys[process["phy"]]
            lines.append(f"| {npu:<8}{chip:<18}| {process['pid']:<14}| {process['name']:<25}| {process['mb']:<24}|")
        if not running:
            text = f"No running processes found in NPU {npu}"
            lines.append(f"| {text:<95}|")
        lines.append(PROCESS_HEAD)
    return "\n".join(lines)


def health(die: dict) -> str:
    """`npu-smi info -t health -i NPU -c CHIP`."""
    fields = {"Health Status": die["health"], "Error Code": die.get("faults", "NA"), "Error Information": "NA"}
    return "\n".join(f"\t{name:<30} : {value}" for name, value in fields.items())


def board(die: dict) -> str:
    """`npu-smi info -t board -i NPU`."""
    fields = {"NPU ID": die["npu"], "Software Version": "26.0.rc1", "Firmware Version": die["firmware"]}
    fields |= {"Compatibility": die["compatibility"], "Board ID": "0x02", "Chip Count": 2}
    return "\n".join(f"\t{name:<30} : {value}" for name, value in fields.items())


def spod(state: dict, die: dict) -> str:
    """`npu-smi info -t spod-info -i NPU -c CHIP`."""
    pod = state["super_pod"]
    fields = {"SDID": die["sdid"], "Super Pod Size": pod["size"], "Super Pod ID": pod["id"]}
    fields["Server Index"] = pod["server_index"]
    return "\n".join(f"\t{name:<30} : {value}" for name, value in fields.items())


# ---------------------------------------------------------------- hccn_tool


def ping(phy: int, address: str, lost: bool) -> str:
    """`hccn_tool -i PHY -hccs_ping -g address IP`."""
    times = [f"recv seq={n},time=0.{181 - n}000ms" if not lost else f"recv time out seq={n}" for n in range(3)]
    received, share = (0, "100.00") if lost else (3, "0.00")
    end = f"3 packets transmitted, {received} received, {share}% packets loss"
    return "\n".join([f"device {phy} PING {address}", *times, end])


def queries(die: dict) -> dict[str, str]:
    """What `hccn_tool -i PHY -QUERY -g` prints, by query."""
    return {
        "ip": f"ipaddr:{die['ip']}\nnetmask:255.255.255.0",
        "vnic": f"vnic link status: {die['vnic_link']}\nvnic ipaddr: {die['vnic_ip']}\nvnic netmask: 255.255.255.0",
        "link": f"link status: {die['link']}",
        "net_health": f"net health status: {die['net_health']}",
        "tls": f"dev_id:{die['phy']}, tls switch[{die['tls']}](0:disable, 1:enable), "
        "tls preconfigured[1](0:non-preset, 1:preset), tls alarm time threshold[60]days",
    }


def outputs(state: dict) -> dict[str, str]:
    """{"npu-smi info": text, ...}: every call that a fake answers; pings to 3 hosts."""
    found = {"npu-smi info": table(state)}
    for die in state["dies"]:
        phy = die["phy"]
        found[f"npu-smi info -t spod-info -i {die['npu']} -c {die['chip']}"] = spod(state, die)
        if not die["chip"]:
            found[f"npu-smi info -t board -i {die['npu']}"] = board(die)
        found[f"npu-smi info -t health -i {die['npu']} -c {die['chip']}"] = health(die)
        found |= {f"hccn_tool -i {phy} -{query} -g": text for query, text in queries(die).items()}
        for number in range(3):
            address = healthy(number)["dies"][phy]["vnic_ip"]
            lost = address in state["ping_lost"]
            found[f"hccn_tool -i {phy} -hccs_ping -g address {address}"] = ping(phy, address, lost)
    return found
