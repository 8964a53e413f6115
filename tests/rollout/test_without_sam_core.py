# SPDX-License-Identifier: Apache-2.0
"""A patched verl loads without the package sam_core; tests/ascend tests engines without it."""

import re

from ranks import HERE, start

PATCHES = HERE.parents[1] / "patches" / "vllm-0.11" / "verl"
LOAD = "import importlib, sys, no_sam_core; no_sam_core.hide(); [*map(importlib.import_module, sys.argv[1:])]"


def test_every_patched_module_loads(tmp_path):
    text = "".join(patch.read_text() for patch in PATCHES.iterdir())
    modules = sorted({file.replace("/", ".") for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", text, re.M)})
    assert "verl.trainer.ppo.metric_utils" in modules
    (tmp_path / "load.py").write_text(LOAD)
    process = start(str(tmp_path / "load.py"), *modules)
    process.communicate()
    assert process.wait() == 0
