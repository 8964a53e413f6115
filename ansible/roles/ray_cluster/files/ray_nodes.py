# SPDX-License-Identifier: Apache-2.0
"""Print the nodes of the Ray cluster at argv[1] as JSON: [{address, alive, npu}]. Starts no job and no worker."""

import json
import sys

from ray._raylet import GcsClient

nodes = []
for info in GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20).values():
    alive = info.state == info.GcsNodeState.Value("ALIVE")
    nodes.append({"address": info.node_manager_address, "alive": alive, "npu": info.resources_total.get("NPU", 0)})
print(json.dumps(nodes))
