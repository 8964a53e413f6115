# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH with tests/common: no process that a recipe starts has the package sam_core; the launcher keeps it.

The environment variable CPU_PLATFORM names the folder with a copy of sam_core's platform for verl, which these load instead,
and the router is verl's own.
"""

import os
import sys

from no_sam_core import hide

if "llm_rl.launch" not in sys.orig_argv:
    hide()
    sys.path.append(os.environ["CPU_PLATFORM"])
    sys.argv[:] = [word for word in sys.argv if "router_config_path" not in word]
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "cpu_platform"
