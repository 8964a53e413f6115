# SPDX-License-Identifier: Apache-2.0
"""Print the nodes of the Ray cluster at argv[1] as JSON: [{address, alive, npu}].

It joins as a job does: what only lists nodes also works where no job can start.
"""

import json
import sys

import ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", configure_logging=False)
nodes = [
    {"address": node["NodeManagerAddress"], "alive": node["Alive"], "npu": node["Resources"].get("NPU", 0)}
    for node in ray.nodes()
]
print("\n" + json.dumps(nodes))
