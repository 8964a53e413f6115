# SPDX-License-Identifier: Apache-2.0
"""Makes the collection importable as Ansible imports it: ansible_collections.sam_rl.ascend.plugins..."""

from pathlib import Path

from ansible.plugins.loader import init_plugin_loader

init_plugin_loader([str(Path(__file__).resolve().parents[2] / "collections")])
