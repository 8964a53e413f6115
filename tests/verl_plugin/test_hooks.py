# SPDX-License-Identifier: Apache-2.0
"""What the plugin relies on in verl is looked up in verl's sources. Nothing of verl is imported."""

import pytest
from conftest import INSTALLED
from hook_checks import a_changed_hook_is_named
from sam_core.engines.verl import hooks
from sam_core.engines.verl.hooks import HOOKS


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
