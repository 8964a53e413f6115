# SPDX-License-Identifier: Apache-2.0
"""Compiles the C sources without a warning and runs the pure C tests, also under the sanitizers."""

import re
import subprocess
import sysconfig

import pytest
from c_programs import CC, CSRC, PROGRAMS, SANITIZE, WARNINGS, build, need_sanitizers, run


@pytest.mark.parametrize("source", sorted(CSRC.glob("*.c")), ids=lambda path: path.name)
def test_compiles_without_warnings(source, tmp_path):
    limited = "-DPy_LIMITED_API=0x030B0000"  # as in setup.py: what is not in that API is not declared
    command = [CC, *WARNINGS, "-O3", limited, "-isystem", sysconfig.get_paths()["include"], "-c", source]
    done = subprocess.run([*command, "-o", tmp_path / "out.o"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_compiler_keeps_functions_that_only_prefetch(tmp_path):
    (tmp_path / "ask.c").write_text(
        '#include "memory.h"\n'
        "__attribute__((noinline)) static void ask(const char *memory) { sam_ask(memory); }\n"
        "void ask_two(const char *memory);\n"
        "void ask_two(const char *memory) { ask(memory); ask(memory + 64); }\n"
    )
    command = [CC, *WARNINGS, "-O3", "-I", CSRC, "-S", tmp_path / "ask.c", "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    of_both = done.stdout.partition("\nask_two:")[2].partition(".size")[0]
    assert len(re.findall(r"(?:call|jmp|bl|b)\s+ask\b", of_both)) == 2, done.stdout


def test_no_source_prefetches_by_itself():
    assert [path.name for path in sorted(CSRC.iterdir()) if "__builtin_prefetch" in path.read_text()] == ["memory.h"]


def test_only_the_module_knows_python():
    assert [path.name for path in sorted(CSRC.iterdir()) if "Python.h>" in path.read_text()] == ["module.c"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_pure_c(program, tmp_path):
    run(build(tmp_path / program, PROGRAMS[program], "-O1"), cwd=tmp_path)


@pytest.mark.parametrize("program", PROGRAMS)
def test_pure_c_under_sanitizers(program, tmp_path):
    need_sanitizers(tmp_path)
    run(build(tmp_path / program, PROGRAMS[program], *SANITIZE), cwd=tmp_path)
