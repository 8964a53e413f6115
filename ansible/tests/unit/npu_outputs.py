# SPDX-License-Identifier: Apache-2.0
"""Output of npu-smi and hccn_tool in the formats that public documents of the HDK and vllm-ascend show for Atlas A3."""

LINE = "+------------------------------------------------------------------------------------------------+\n"
HEAD = (
    LINE
    + "| npu-smi 26.0.rc1                 Version: 26.0.rc1                                             |\n"
    + "+---------------------------+---------------+----------------------------------------------------+\n"
    + "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
    + "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n"
    + "+===========================+===============+====================================================+\n"
)
TAIL = (
    "+---------------------------+---------------+----------------------------------------------------+\n"
    "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
    "+===========================+===============+====================================================+\n"
    "| No running processes found in NPU 0                                                            |\n"
    "| 1       0                 | 4242          | python                   | 30000                   |\n"
)


def die(phy, health="OK", used=3118, total=65536):
    power = "171.9" if phy % 2 == 0 else "-"
    return (
        f"| {phy // 2:<6}Ascend910           | {health:<14}| {power:<12}36                0    / 0             |\n"
        f"| {phy % 2:<6}{phy:<20}| 0000:9D:00.0  | 0           0    / 0          {used:<5}/ {total}         |\n" + LINE
    )


def info(count=16, **changes):
    """`npu-smi info` of `count` dies; changes: phy{N}={...arguments of die}."""
    return HEAD + "".join(die(phy, **changes.get(f"phy{phy}", {})) for phy in range(count)) + TAIL


MAP = "\tNPU ID                         Chip ID                        Chip Logic ID                  " + (
    "Chip Phy-ID                    Chip Name\n"
)
for npu in range(8):
    for chip in range(2):
        MAP += f"\t{npu:<31}{chip:<31}{2 * npu + chip:<31}{2 * npu + chip:<31}Ascend910\n"
    MAP += f"\t{npu:<31}{2:<31}{'-':<31}{'-':<31}Mcu\n"

SPOD = (
    "\tSDID                           : 4194305\n\tSuper Pod Size                 : 384\n"
    "\tSuper Pod ID                   : 3\n\tServer Index                   : 1\n"
)
SPOD_TABLE = "| SDID : 0x400001 | Super Pod Size : 384 |\n| Super Pod ID : 3 | Server Index : 1 | Pod ID : 1 |\n"
VNIC = "vnic link status: UP\nvnic ipaddr: 192.168.2.199\nvnic netmask: 255.255.255.0\n"
TLS = "dev_id:0, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), tls alarm time threshold[60]days\n"
PING = (
    "device 0 PING 192.168.2.199\nrecv seq=0,time=0.100000ms\nrecv seq=1,time=0.100000ms\nrecv seq=2,time=0.1ms\n"
    "3 packets transmitted, 3 received, 0.00% packets loss\n"
)
CHRONY = "A9FEA97B,169.254.169.123,3,1792000000.123456789,-0.000012,0.000001,0.000021,-1.5,0.001,0.02,0.0003,0.0002,64.2,Normal\n"
