# SPDX-License-Identifier: Apache-2.0
"""Sample outputs of npu-smi and hccn_tool, from the test bed's stand-ins, and of chronyc."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bed"))

import npu

STATE = npu.healthy(1)
STATE["super_pod"]["id"] = 3


def info(count=16, **changes):
    """The output of `npu-smi info` for `count` dies; phy{N}={field: value} changes fields of die N."""
    dies = [die | changes.get(f"phy{die['phy']}", {}) for die in STATE["dies"][:count]]
    return npu.table({**STATE, "dies": dies}) + "\n"


SPOD = npu.spod(STATE, STATE["dies"][0] | {"sdid": 0x400001})
SPOD_TABLE = "| SDID : 0x400001 | Super Pod Size : 384 |\n| Super Pod ID : 3 | Server Index : 1 | Pod ID : 1 |\n"
BOARD = npu.board(STATE["dies"][0])
HEALTH = npu.health(STATE["dies"][0])
IP, VNIC, LINK, _, TLS = npu.queries(STATE["dies"][0] | {"link": "UP"}).values()
PING = npu.ping(0, "192.168.2.199", False)
CHRONY = (
    "A9FEA97B,169.254.169.123,3,1792000000.123456789,-0.000012,0.000001,0.000021,"
    "-1.5,0.001,0.02,0.0003,0.0002,64.2,Normal\n"
)
