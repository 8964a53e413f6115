# SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH with tests/common: no process that a recipe starts has the package sam_core; the launcher keeps it.

The router is verl's own.
"""

import sys

from no_sam_core import hide

if "llm_rl.launch" not in sys.orig_argv:
    hide()
    sys.argv[:] = [word for word in sys.argv if "router_config_path" not in word]
