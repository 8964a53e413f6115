# SPDX-License-Identifier: Apache-2.0
"""ci/test-mutants reads the report of a pytest run correctly, and the bugs that it injects fit the present code."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "ci" / "test-mutants"))
PIN_SETS = sorted(path.parent.name for path in ROOT.glob("patches/*/pins.toml"))
BUGS = [(pin_set, bug) for pin_set in TOOL["TESTS"] for bug in TOOL["bugs"](pin_set)]
TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError

def test_good(): pass
def test_bad(): assert 0
def test_bad_not(): pass
def test_without_fixture(broken): pass
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.parametrize("x", ["a::b[c]", "<d>"])
def test_one_of(x): assert x == "<d>"
class TestIt:
    def test_good(self): assert 0
class TestOther:
    def test_good(self): pass
"""
FAILED = ["", "::test_bad", "::test_without_fixture", "::test_one_of[a::b[c]]", "::TestIt", "::TestIt::test_good"]
NOT = ["::test_good", "::test_bad_not", "::test_skipped", "::test_one_of[<d>]", "::TestOther", "::test_absent"]


def test_what_counts_as_failed(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "--junitxml=report.xml", "tests/test_it.py"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1
    cases = list(xml.etree.ElementTree.parse(tmp_path / "report.xml").iter("testcase"))
    assert [name for name in FAILED + NOT if TOOL["failed"](cases, f"tests/test_it.py{name}")] == FAILED


@pytest.mark.parametrize(("pin_set", "bug"), BUGS, ids=lambda part: getattr(part, "stem", part))
def test_bug_applies_and_names_tests(pin_set, bug, tmp_path):
    """A bug applies to sam_core in this tree or to installed, patched modules: if code moves, its bugs must follow."""
    text = bug.read_text()
    named = re.findall(r"^Tests: (\S+)::(\w+)", text, re.MULTILINE)
    assert named
    for path, function in named:
        assert f"def {function}(" in (ROOT / path).read_text(), f"{bug} names no test of {path}"
    for path in re.findall(r"^--- a/(.+)$", text, re.MULTILINE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(present(path, pin_set), tmp_path / path)
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    command = ["git", "apply", "--check", bug]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{bug} does not apply: change its lines to the present code.\n{done.stderr}"


def present(path, pin_set):
    """Path of a module's file with all patches. Skips the test if no environment has the patched file."""
    if path.startswith("sam_core/"):
        return ROOT / "sam_core" / "src" / path
    installed = sorted((ROOT / ".venvs" / pin_set).glob(f"lib/python3*/site-packages/{path}"))
    if not installed:
        pytest.skip(f".venvs/{pin_set} is missing: call ci/setup-env {pin_set}")
    if pin_set not in PIN_SETS:
        return installed[0]
    modules = tomllib.loads((ROOT / "patches" / pin_set / "pins.toml").read_text())["module"]
    blobs = modules[path.partition("/")[0]]["recorded"]["blobs"]
    blob = subprocess.check_output(["git", "hash-object", "--no-filters", installed[0]], text=True).strip()
    if path in blobs and blob != blobs[path][1]:
        pytest.skip(f".venvs/{pin_set} has not the present patches: call ci/setup-env {pin_set}")
    return installed[0]
