# SPDX-License-Identifier: Apache-2.0
"""The lock files are complete, name no index, and agree with pins.toml and with the requirements they come from."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINSETS = sorted(path.parent for path in ROOT.glob("patches/*/requirements.lock"))
OTHERS = [ROOT / "ansible" / "requirements.lock", ROOT / "sam_lab" / "bench" / "requirements.lock"]
LOCKS = [*sorted(ROOT.glob("ci/*.lock")), *OTHERS, *(folder / "requirements.lock" for folder in PINSETS)]
sys.path.insert(0, str(ROOT / "ci"))
from lock_files import locked  # noqa: E402


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_line_is_an_entry_with_hashes_and_every_requirement_is_locked(lock):
    entries = locked(lock)
    assert "".join(text + "\n" for text, _ in entries.values()) == lock.read_text()
    assert "://" not in lock.read_text()
    requirement = r"^([A-Za-z0-9._-]+)(?:\[\w+\])?(?:==(\S+))?$"
    wanted = re.findall(requirement, lock.with_suffix(".in").read_text(), re.MULTILINE)
    pinned = dict(pin.split("==") for pin in entries)
    assert len(wanted) > 5
    for name, version in wanted:
        assert name in pinned and version in ("", pinned[name]), name


@pytest.mark.parametrize("folder", PINSETS, ids=lambda path: path.name)
def test_lock_agrees_with_pins(folder):
    pins = tomllib.loads((folder / "pins.toml").read_text())
    pinned = dict(pin.split("==") for pin in locked(folder / "requirements.lock"))
    named = {name: version for name, version in pins["runtime"]["cpu"].items() if isinstance(version, str)}
    named |= {
        name: version or module["version"]
        for module in pins["module"].values()
        for name, _, version in (dist.partition("==") for dist in module["dists"])
        if name in pinned
    }
    assert len(named) > 3
    assert {name: pinned.get(name) for name in named} == named
