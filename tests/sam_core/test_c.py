# SPDX-License-Identifier: Apache-2.0
"""Compiles the C sources without a warning and runs the pure C tests, also under the sanitizers."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "sam_core" / "csrc"
CC = os.environ.get("CC", "cc")
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]


def compile_c(*arguments):
    done = subprocess.run([CC, *WARNINGS, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", sorted(CSRC.glob("*.c")), ids=lambda path: path.name)
def test_compiles_without_warnings(source, tmp_path):
    compile_c("-O3", "-isystem", sysconfig.get_paths()["include"], "-c", source, "-o", tmp_path / "out.o")


def test_only_the_module_knows_python():
    assert [path.name for path in sorted(CSRC.iterdir()) if "Python.h>" in path.read_text()] == ["module.c"]


def run_c_tests(tmp_path, *options):
    program = tmp_path / "test_c"
    compile_c(*options, "-I", CSRC, HERE / "test_c.c", "-o", program)
    # Leaks are found by the test's own allocator: LeakSanitizer does not run everywhere.
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_pure_c(tmp_path):
    run_c_tests(tmp_path, "-O1")


def test_pure_c_under_sanitizers(tmp_path):
    sanitize = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe = [CC, *sanitize, "-x", "c", "-", "-o", str(tmp_path / "probe")]
    if subprocess.run(probe, input=b"int main(void) {}").returncode:
        pytest.skip(f"{CC} cannot link the address and undefined-behaviour sanitizers")
    run_c_tests(tmp_path, *sanitize)
