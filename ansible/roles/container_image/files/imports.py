# SPDX-License-Identifier: Apache-2.0
"""Imports modules; status 1, and a line on the first that fails with its reason."""

import importlib
import sys

names = sys.argv[1:]
del sys.argv[1:]  # MindSpeed reads them
for name in names:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        print(f"\nfailed: {name} ({type(error).__name__}: {' '.join(str(error).split())})")
        sys.exit(1)
