# SPDX-License-Identifier: Apache-2.0
"""The C sources compile without a warning; the C programs, the seeds of the fuzz targets and the module in its Python
tests run under sanitizers; on aarch64 drafts are equal bit by bit.

A long run of a fuzz target: build it as `test_fuzzing` does, then `fuzz_pool -max_len=1024 -len_control=0 FOLDER
SEEDS`, in a folder of its own with the corpus of `folder`.
"""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from sam_core.corpus import build_corpus

import sam_core

HERE = Path(__file__).parent
# Around the tests in an unpacked source archive, next to their folder in the repository.
CSRC = next(path for path in (HERE.parent / "csrc", HERE.parents[1] / "sam_core" / "csrc") if path.is_dir())
CC = os.environ.get("CC", "cc")
WARNINGS = ["-std=c11", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
AUTOMATON = sorted(path.name for path in CSRC.glob("sam*.c"))
FILES = ["corpus.c", "persist.c"]
MODULE = sorted(path.name for path in CSRC.glob("*.c") if path.name == "module.c" or path.name.startswith("python"))
OTHERS = ("budget.c", "cost.c", "table.c", *FILES, *MODULE)
POOL = sorted(path.name for path in CSRC.glob("*.c") if path.name not in OTHERS)
# The C programs and fuzz targets with their sources. The targets include the files of FILES.
PROGRAMS = {
    "test_pool": ["test_pool.c", *POOL, *FILES],
    "test_index": ["test_index.c", "memory.c", *AUTOMATON],
}
TARGETS = {target: [f"fuzz/{target}.c", *POOL] for target in ("fuzz_pool", "fuzz_files")}
SEEDS = {target: sorted((HERE / "fuzz" / "seeds" / target).iterdir()) for target in TARGETS}
OBJECTS = tempfile.TemporaryDirectory(prefix="sam_core-objects-")
# Leaks are found by the tests' own allocator: LeakSanitizer does not run everywhere.
ENVIRONMENT = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
RELEASE = ["-O3", "-ffp-contract=off", "-fvisibility=hidden"]  # as in setup.py
LIMITED = "-DPy_LIMITED_API=0x030B0000"  # as in setup.py: what is not in that API is not declared
INCLUDE = ["-isystem", sysconfig.get_paths()["include"]]
# So small that few tokens and rows take all paths.
SMALL = ["-DSAM_TABLE=32u", "-DSAM_LARGE=((size_t)1<<14)"]
SMALL += [f"-DTHREADS_{name}=2u" for name in ("FED", "DRAFTED", "ROWS")]


@functools.cache
def compile_c(source: Path, options: tuple[str, ...], compiler: str) -> str:
    """Compiles one file, once for each set of options. Returns the object file; fails on a warning."""
    target = Path(OBJECTS.name, f"{compile_c.cache_info().misses}-{source.stem}.o")
    seam = ["-include", HERE / "failing_memory.h", "-I", HERE, "-I", CSRC]
    run(compiler, *WARNINGS, *options, *seam, "-c", source, "-o", target)
    return str(target)


def build(program: Path, sources: list[str], *options: str, compiler: str = CC) -> Path:
    """Builds `program` of `sources`, files of this folder or of csrc, and failing_memory.c. Returns `program`."""
    paths = [HERE / name if (HERE / name).exists() else CSRC / name for name in [*sources, "failing_memory.c"]]
    run(compiler, "-pthread", *options, *(compile_c(path, options, compiler) for path in paths), "-o", program)
    return program


def run(*command: str | Path, **options) -> str:
    """Runs a program, which must succeed. Returns what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, **{"env": ENVIRONMENT} | options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


@pytest.fixture(scope="module")
def aarch64():
    """Builds a static program for aarch64. Returns the command that runs it here."""
    compiler = need_program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    emulator = need_program("qemu-aarch64", "qemu-user")

    def build_it(program, sources):
        return emulator, build(program, sources, *RELEASE, "-static", compiler=compiler)

    return build_it


def test_the_module_compiles_without_warnings(tmp_path):
    for name in MODULE:
        run(CC, *WARNINGS, "-O3", LIMITED, *INCLUDE, "-c", CSRC / name, "-o", tmp_path / "out.o")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Environment variables with which Python imports a sam_core that is built with sanitizers."""
    folder = tmp_path_factory.mktemp("checked")
    need_sanitizers(folder)
    package = folder / "sam_core"
    shutil.copytree(sam_core.__path__[0], package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    flags = ["-std=c11", "-pthread", "-shared", "-fPIC", "-ffp-contract=off", *SMALL, LIMITED, *INCLUDE]
    run(CC, *SANITIZE, "-O0", *flags, *sorted(CSRC.glob("*.c")), "-o", package / "_sam.abi3.so")
    library = run(CC, "-print-file-name=libasan.so").strip()
    return ENVIRONMENT | {"LD_PRELOAD": library, "PYTHONPATH": str(folder), "PYTHONMALLOC": "malloc"}


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("bad_input", ""),
        ("budget", "choice or turns or linear or promise or became"),
        pytest.param("twin", "", marks=pytest.mark.slow),
    ],
)
def test_the_module_under_sanitizers(name, tests, checked):
    words = ["-qs", "-p", "no:cacheprovider", HERE / f"test_{name}.py", "-k", tests]  # a report is not captured
    run(sys.executable, "-m", "pytest", *words, env=checked)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program, tmp_path):
    run(build(tmp_path / program, PROGRAMS[program], *RELEASE), cwd=tmp_path)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_under_sanitizers(program, tmp_path):
    need_sanitizers(tmp_path)
    run(build(tmp_path / program, PROGRAMS[program], *SANITIZE), cwd=tmp_path)


@pytest.fixture
def folder(tmp_path):
    """A working folder with the corpus that the fuzz targets read."""
    texts = [[at * at // 7 % 6 for at in range(first, first + 49)] for first in range(0, 300, 50)]
    build_corpus(texts, tmp_path / "corpus")
    return tmp_path


def test_no_data_races(folder):
    """ThreadSanitizer finds no race while a pool is saved, and none among the threads of a step."""
    need_sanitizers(folder, sanitize="thread")
    fixed = [shutil.which("setarch"), "-R"] if shutil.which("setarch") else []  # ThreadSanitizer needs its addresses
    sources = {"saving": PROGRAMS["test_pool"], "steps": [*TARGETS["fuzz_pool"], "fuzz/replay.c"]}
    for name, words in (("saving", ["only"]), ("steps", SEEDS["fuzz_pool"])):
        run(*fixed, build(folder / name, sources[name], "-O1", "-g", "-fsanitize=thread"), *words, cwd=folder)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target, folder):
    need_sanitizers(folder)
    assert len(SEEDS[target]) > 20
    run(build(folder / target, [*TARGETS[target], "fuzz/replay.c"], *SANITIZE), *SEEDS[target], cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzing(target, folder):
    clang = need_program("clang", "clang")
    sanitize = "fuzzer,address,undefined"
    need_sanitizers(folder, clang, sanitize)
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-sanitize-coverage=trace-cmp"]
    program = build(folder / target, TARGETS[target], *flags, compiler=clang)
    (folder / "found").mkdir()
    limits = ["-max_total_time=3", "-max_len=1024", "-len_control=0", "-seed=1"]  # seconds, bytes
    run(program, *limits, folder / "found", HERE / "fuzz" / "seeds" / target, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_aarch64(program, aarch64, tmp_path):
    run(*aarch64(tmp_path / program, PROGRAMS[program]), cwd=tmp_path)


@pytest.mark.parametrize("target", [pytest.param("fuzz_pool", marks=pytest.mark.slow), "fuzz_files"])
def test_drafts_and_files_are_the_same_on_aarch64(target, aarch64, folder):
    need_sanitizers(folder)
    sources = [*TARGETS[target], "fuzz/replay.c"]
    there = run(*aarch64(folder / "there", sources), *SEEDS[target], cwd=folder)
    here = run(build(folder / "here", sources, *SANITIZE), *SEEDS[target], cwd=folder)  # as test_seeds builds it
    assert here == there and len(here) == 17  # a hash of all that was drafted and saved
