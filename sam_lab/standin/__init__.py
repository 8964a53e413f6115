# SPDX-License-Identifier: Apache-2.0
"""Engines over the stand-in for torch_npu: host time of their steps, and what a device would wait for and run.

The engines are those of tests/ascend.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path += [str(TESTS / "common"), str(TESTS / "ascend")]
