# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets: their seeds everywhere, and a short run where clang has libFuzzer.

A long run: build as `test_fuzzing` does, then `fuzz_pool -max_len=1024 -len_control=0 FOLDER SEEDS`, in a folder of
its own.
"""

import pytest
from c_programs import HERE, SANITIZE, TARGETS, build, need_program, need_sanitizers, run, seeds

SECONDS = 3  # of each run


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target, tmp_path):
    need_sanitizers(tmp_path)
    program = build(tmp_path / target, [*TARGETS[target], "fuzz/replay.c"], *SANITIZE)
    assert len(seeds(target)) > 20
    run(program, *seeds(target), cwd=tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_fuzzing(target, tmp_path):
    clang = need_program("clang", "clang")
    sanitize = "fuzzer,address,undefined"
    need_sanitizers(tmp_path, clang, sanitize)
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-sanitize-coverage=trace-cmp"]
    program = build(tmp_path / target, TARGETS[target], *flags, compiler=clang)
    found = tmp_path / "found"
    found.mkdir()
    limits = [f"-max_total_time={SECONDS}", "-max_len=1024", "-len_control=0", "-seed=1"]
    run(program, *limits, found, HERE / "fuzz" / "seeds" / target, cwd=tmp_path)
