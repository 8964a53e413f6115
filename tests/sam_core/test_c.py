# SPDX-License-Identifier: Apache-2.0
"""The C sources compile without a warning; the C programs and the seeds of the fuzz targets run, also under sanitizers
and on aarch64, where drafts are equal bit by bit.

A long run of a fuzz target: build it as `test_fuzzing` does, then `fuzz_pool -max_len=1024 -len_control=0 FOLDER
SEEDS`, in a folder of its own.
"""

import shutil
import subprocess
import sysconfig

import pytest
from c_programs import (
    CC,
    CSRC,
    HERE,
    PROGRAMS,
    SANITIZE,
    TARGETS,
    WARNINGS,
    build,
    need_program,
    need_sanitizers,
    run,
    seeds,
)

RELEASE = ["-O3", "-ffp-contract=off", "-fvisibility=hidden"]  # as in setup.py
SHORT_OR_FULL = [pytest.param(["short"], id="short"), pytest.param([], id="full", marks=pytest.mark.slow)]
FUZZING_SECONDS = 3  # of each run


@pytest.fixture(scope="module")
def aarch64():
    """Builds a static program for aarch64. Returns the command that runs it here."""
    compiler = need_program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    emulator = need_program("qemu-aarch64", "qemu-user")

    def build_it(program, sources):
        return emulator, build(program, sources, *RELEASE, "-static", compiler=compiler)

    return build_it


def test_the_module_compiles_without_warnings(tmp_path):
    limited = "-DPy_LIMITED_API=0x030B0000"  # as in setup.py: what is not in that API is not declared
    command = [CC, *WARNINGS, "-O3", limited, "-isystem", sysconfig.get_paths()["include"], "-c", CSRC / "module.c"]
    done = subprocess.run([*command, "-o", tmp_path / "out.o"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_module_knows_python():
    assert [path.name for path in sorted(CSRC.iterdir()) if "Python.h>" in path.read_text()] == ["module.c"]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program, tmp_path):
    run(build(tmp_path / program, PROGRAMS[program], *RELEASE), cwd=tmp_path)


@pytest.mark.parametrize("length", SHORT_OR_FULL)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_under_sanitizers(program, length, tmp_path):
    need_sanitizers(tmp_path)
    run(build(tmp_path / program, PROGRAMS[program], *SANITIZE), *length, cwd=tmp_path)


@pytest.mark.parametrize("length", SHORT_OR_FULL)
def test_no_data_races(length, tmp_path):
    need_sanitizers(tmp_path, sanitize="thread")
    program = build(tmp_path / "threads", PROGRAMS["test_threads"], "-O1", "-g", "-fsanitize=thread")
    fixed = [shutil.which("setarch"), "-R"] if shutil.which("setarch") else []  # ThreadSanitizer needs its addresses
    run(*fixed, program, *length, cwd=tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target, tmp_path):
    need_sanitizers(tmp_path)
    assert len(seeds(target)) > 20
    run(build(tmp_path / target, [*TARGETS[target], "fuzz/replay.c"], *SANITIZE), *seeds(target), cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzing(target, tmp_path):
    clang = need_program("clang", "clang")
    sanitize = "fuzzer,address,undefined"
    need_sanitizers(tmp_path, clang, sanitize)
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-sanitize-coverage=trace-cmp"]
    program = build(tmp_path / target, TARGETS[target], *flags, compiler=clang)
    found = tmp_path / "found"
    found.mkdir()
    limits = [f"-max_total_time={FUZZING_SECONDS}", "-max_len=1024", "-len_control=0", "-seed=1"]
    run(program, *limits, found, HERE / "fuzz" / "seeds" / target, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_aarch64(program, aarch64, tmp_path):
    run(*aarch64(tmp_path / program, PROGRAMS[program]), "short", cwd=tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_drafts_and_files_are_the_same_on_aarch64(target, aarch64, tmp_path):
    need_sanitizers(tmp_path)
    sources = [*TARGETS[target], "fuzz/replay.c"]
    there = run(*aarch64(tmp_path / "there", sources), *seeds(target), cwd=tmp_path)
    here = run(build(tmp_path / "here", sources, *SANITIZE), *seeds(target), cwd=tmp_path)  # as test_seeds builds it
    assert here == there and len(here) == 17  # a hash of all that was drafted and saved
