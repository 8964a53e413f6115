# SPDX-License-Identifier: Apache-2.0
"""Engines over the stand-in for torch_npu: host time of their steps, and what a device would wait for and run.

The engines and the stand-in are in testing/, which is no package.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "testing" / "engines"))
