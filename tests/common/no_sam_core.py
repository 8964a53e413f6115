# SPDX-License-Identifier: Apache-2.0
"""Hide the package sam_core from this process."""

import sys


def hide():
    """Unload the package; from now on importing it raises ImportError."""
    for name in [name for name in sys.modules if name.startswith("sam_core")]:
        del sys.modules[name]
    sys.modules["sam_core"] = None
