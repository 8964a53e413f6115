# SPDX-License-Identifier: Apache-2.0
"""Compiles the C sources without a warning and runs the pure C tests under the sanitizers."""

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


def test_pure_c_under_sanitizers(tmp_path):
    program = tmp_path / "test_c"
    sanitize = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([CC, *sanitize, "-x", "c", "-", "-o", str(program)], input=b"int main(void) {}").returncode:
        sanitize = ["-O1"]  # a compiler without the sanitizers' libraries
    compile_c(*sanitize, "-I", CSRC, HERE / "test_c.c", "-o", program)
    # Leaks are found by the test's own allocator: LeakSanitizer does not run everywhere.
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
