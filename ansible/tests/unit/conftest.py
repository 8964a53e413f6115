# SPDX-License-Identifier: Apache-2.0
"""Makes the plugins importable as Ansible does: module_utils as ansible.module_utils.NAME, filters by file name."""

import importlib
import importlib.util
import sys
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


def load(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


for file in sorted((PLUGINS / "module_utils").glob("*.py")):
    load(file, f"ansible.module_utils.{file.stem}")
sys.path[:0] = [str(PLUGINS / "filter"), str(PLUGINS / "modules")]
