# SPDX-License-Identifier: Apache-2.0
"""Makes the collection importable as Ansible imports it: ansible_collections.sam_rl.ascend.plugins..."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))
