# SPDX-License-Identifier: Apache-2.0
"""How ci/test-mutants reads the report of a pytest run."""

import runpy
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
FAILED = ["", "::test_bad", "::test_without_fixture", "::test_one_of", "::test_one_of[a::b[c]]", "::TestIt"]
FAILED += ["::TestIt::test_good"]
NOT = ["::test_good", "::test_bad_not", "::test_skipped", "::test_one_of[<d>]", "::TestOther", "::TestOther::test_good"]
NOT += ["::test_b", "::test_absent", "::TestIt::test_bad"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "tests").mkdir()
    (root / "tests" / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "--junitxml=report.xml", "tests/test_it.py"]
    assert subprocess.run(command, cwd=root, capture_output=True).returncode == 1
    return list(xml.etree.ElementTree.parse(root / "report.xml").iter("testcase"))


@pytest.mark.parametrize(("test", "expected"), [(name, True) for name in FAILED] + [(name, False) for name in NOT])
def test_what_counts_as_failed(cases, test, expected):
    failed = runpy.run_path(str(ROOT / "ci" / "test-mutants"))["failed"]
    assert failed(cases, f"tests/test_it.py{test}") is expected
