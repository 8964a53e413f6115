# SPDX-License-Identifier: Apache-2.0
"""The patches fit a git checkout of verl's tag, which has what no package has: recipe/dapo, and no PKG-INFO."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT.parent / "shared" / "upstream" / "verl-0.6.1-recipe-dapo"


def patchset(command, target, code=0):
    done = subprocess.run(
        [sys.executable, ROOT / "patches" / "patchset", command, "vllm-0.11", "--module", "verl", "--to", target],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def git(*args, cwd):
    own = ["-c", "user.name=Dev", "-c", "user.email=dev@example.org"]
    return subprocess.run(["git", *own, *args], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A git repository with the source distribution's files and those of the recipe."""
    patchset("apply", tmp_path)
    tree = tmp_path / "verl"
    patchset("drop", tree)
    (tree / "PKG-INFO").unlink()
    shutil.rmtree(tree / "verl.egg-info")
    recipe = tree / "recipe" / "dapo"
    if RECIPE.is_dir():
        shutil.copytree(RECIPE, recipe)
    else:
        recipe.mkdir(parents=True)
        (recipe / "dapo_ray_trainer.py").write_text("class RayDAPOTrainer: ...\n")
    git("init", "--quiet", cwd=tree)
    git("add", "--all", cwd=tree)
    git("commit", "--quiet", "--message=v0.6.1", cwd=tree)
    return tree


def test_apply_status_and_drop(checkout):
    assert "original" in patchset("status", checkout)
    assert "patched, " in patchset("apply", checkout)
    changed = git("diff", "--name-only", cwd=checkout).split()
    assert "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py" in changed
    assert all(path.startswith("verl/") for path in changed)
    assert not git("ls-files", "--others", "--exclude-standard", cwd=checkout)
    status = patchset("status", checkout)
    assert "(source tree): patched" in status
    assert "not a recorded one: files that no patch touches differ" in status  # the recipe is in no source distribution
    assert "already patched" in patchset("apply", checkout)
    patchset("drop", checkout)
    assert not git("status", "--short", cwd=checkout)


def test_checkout_of_another_commit_is_refused(checkout):
    file = checkout / "verl" / "trainer" / "ppo" / "metric_utils.py"
    file.write_text(file.read_text().replace("import numpy as np\n", "import numpy\n", 1))
    assert "verl/trainer/ppo/metric_utils.py (changed)" in patchset("apply", checkout, code=1)
    assert git("diff", "--name-only", cwd=checkout).split() == ["verl/trainer/ppo/metric_utils.py"]
