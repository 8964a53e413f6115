# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the C test programs."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The package's folder: around the tests in an unpacked source archive, beside them in the repository.
PROJECT = HERE.parent if (HERE.parent / "csrc").is_dir() else HERE.parents[1] / "sam_core"
CSRC = PROJECT / "csrc"
CC = os.environ.get("CC", "cc")
WARNINGS = ["-std=c11", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FILES = ["corpus.c", "persist.c"]
POOL = sorted(path.name for path in CSRC.glob("*.c") if path.name not in ("module.c", "budget.c", "table.c", *FILES))
# The C programs and fuzz targets with their sources. The targets include the files of FILES.
PROGRAMS = {
    "test_pool": ["test_pool.c", *POOL, *FILES],
    "test_threads": ["test_threads.c", *POOL, *FILES],
    "test_index": ["test_index.c", "memory.c", "sam.c"],
    "test_budget": ["test_budget.c", "budget.c"],
    "test_table": ["test_table.c", "table.c"],
}
TARGETS = {target: [f"fuzz/{target}.c", *POOL] for target in ("fuzz_pool", "fuzz_files")}
OBJECTS = tempfile.TemporaryDirectory(prefix="sam_core-objects-")
# Leaks are found by the tests' own allocator: LeakSanitizer does not run everywhere.
ENVIRONMENT = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


@functools.cache
def compile_c(source: Path, options: tuple[str, ...], compiler: str) -> str:
    """Compiles one file, once for each set of options. Returns the object file; fails on a warning."""
    target = Path(OBJECTS.name, f"{compile_c.cache_info().misses}-{source.stem}.o")
    seam = ["-include", HERE / "failing_memory.h", "-I", HERE, "-I", CSRC]
    command = [compiler, *WARNINGS, *options, *seam, "-c", source, "-o", target]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(target)


def build(program: Path, sources: list[str], *options: str, compiler: str = CC) -> Path:
    """Builds `program` of `sources`, paths below tests/sam_core or names of files of csrc, and failing_memory.c; fails
    on a warning. Returns `program`."""
    paths = [HERE / name if (HERE / name).exists() else CSRC / name for name in [*sources, "failing_memory.c"]]
    objects = [compile_c(path, options, compiler) for path in paths]
    done = subprocess.run([compiler, "-pthread", *options, *objects, "-o", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(*command: str | Path, **options) -> str:
    """Runs a program, which must succeed. Returns what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seeds(target: str) -> list[Path]:
    """The inputs that the repository holds for a fuzz target."""
    return sorted((HERE / "fuzz" / "seeds" / target).iterdir())


def need_program(name: str, package: str) -> str:
    """The path of a program; skips the test if it is not installed."""
    path = shutil.which(name)
    if not path:
        pytest.skip(f"{name} is not installed (Debian: {package})")
    return path


def need_sanitizers(folder: Path, compiler: str = CC, sanitize: str = "address,undefined") -> None:
    """Skips the test if the compiler cannot link the sanitizers."""
    source = folder / "probe.c"
    source.write_text(
        "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);\n"
        "int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) { return !data + !size; }\n"
        + ("" if "fuzzer" in sanitize else "int main(void) { return 0; }\n")
    )
    probe = [compiler, f"-fsanitize={sanitize}", source, "-o", folder / "probe"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip(f"{compiler} cannot link -fsanitize={sanitize}")
