# SPDX-License-Identifier: Apache-2.0
"""Call `hide`, and this process has no package sam_core."""

import sys


def hide():
    """Forget what of it was imported; importing it raises ImportError from now on."""
    for name in [name for name in sys.modules if name.startswith("sam_core")]:
        del sys.modules[name]
    sys.modules["sam_core"] = None
