# SPDX-License-Identifier: Apache-2.0
"""Checks for the hooks of every package."""

from sam_core.engines.hooks import _find, problem, tree


def forget_files():
    """Clear the caches of parsed sources, which tests change."""
    tree.cache_clear()
    _find.cache_clear()


def a_changed_hook_is_named(hook, installed, folder):
    """folder: an empty folder for changed copies of the hook's file in `installed`."""
    text = (installed / hook.file).read_text()
    file = folder / hook.file
    file.parent.mkdir(parents=True, exist_ok=True)
    for old, new, sentence in (
        (f"def {hook.name}(", f"def gone_{hook.name}(", "is missing"),
        (f"def {hook.name}(", f"def {hook.name}(other, ", "has parameters (other"),
    ):
        forget_files()
        file.write_text(text.replace(old, new))
        assert sentence in problem(folder, hook)
    forget_files()
    file.write_text(text)
    assert problem(folder, hook) is None
    lacking = hook._replace(has=(*hook.has, "what_is_not_there()"))
    assert problem(folder, lacking).endswith("no longer has `what_is_not_there()`")
