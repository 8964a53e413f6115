# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks are looked up in verl's sources; no module of verl is imported."""

import subprocess
import sys

import pytest
from conftest import INSTALLED
from hook_checks import a_changed_hook_is_named
from sam_core.engines.verl import hooks
from sam_core.engines.verl.hooks import HOOKS


def show(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "sam_core.engines.verl.hooks", *arguments], capture_output=True, text=True
    )


def test_all_hooks_fit():
    assert hooks.VERL.problems(INSTALLED) == []
    assert len(HOOKS) == len({(hook.file, hook.owner, hook.name) for hook in HOOKS})


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: f"{hook.owner}.{hook.name}")
def test_a_hook_that_changed_is_named(hook, tmp_path):
    a_changed_hook_is_named(hook, INSTALLED, tmp_path)


def test_a_release_that_does_not_fit_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(
        ValueError, match=f"knows verl .* does not fit the installed 0.99: .* is missing, and {len(HOOKS) - 1} more; "
    ):
        hooks.check(tmp_path, "0.99")
    hooks.check(INSTALLED, "")


def test_the_hooks_of_a_copy_are_printed(tmp_path):
    assert f"{len(HOOKS)} of {len(HOOKS)} hooks fit, as of" in show(INSTALLED).stdout
    assert "has no folder workers" in show(tmp_path).stderr
    (tmp_path / "workers" / "config").mkdir(parents=True)
    done = show(tmp_path)
    assert done.returncode == 1 and f"0 of {len(HOOKS)} hooks fit, as of" in done.stdout
    (tmp_path / "workers" / "config" / "rollout.py").write_text("def uses_sam(rollout): ...")
    done = show(tmp_path)
    assert done.returncode == 0 and "has this project's patches" in done.stdout
