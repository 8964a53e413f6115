# SPDX-License-Identifier: Apache-2.0
"""The C core on aarch64, by a cross compiler and an emulator: its tests, and drafts that are equal bit by bit."""

import pytest
from c_programs import CORE, PROGRAMS, TARGETS, build, need_program, run, seeds
from sam_core.corpus import build_corpus

FLAGS = ["-O3", "-ffp-contract=off", "-fvisibility=hidden"]  # as in setup.py


@pytest.fixture(scope="module")
def aarch64():
    """Builds a static program for aarch64. Returns the command that runs it here."""
    compiler = need_program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    emulator = need_program("qemu-aarch64", "qemu-user")

    def build_it(program, sources):
        return emulator, build(program, sources, *FLAGS, "-static", compiler=compiler)

    return build_it


@pytest.mark.parametrize("program", PROGRAMS)
def test_pure_c(program, aarch64, tmp_path):
    run(*aarch64(tmp_path / program, PROGRAMS[program]), "short", cwd=tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target, aarch64, tmp_path):
    command = aarch64(tmp_path / target, [*TARGETS[target], "fuzz/replay.c"])
    run(*command, *seeds(target), cwd=tmp_path)


def test_drafts_are_bit_equal(aarch64, tmp_path):
    texts = [[7] for _ in range(20)]  # like those of workload.c
    for number, text in enumerate(texts):
        for i in range(200):
            text.append(text[-1] * 48271 % 97 * 500 + (i * i + number) % 5 // 4)
    build_corpus(texts, tmp_path / "texts")
    sources = ["workload.c", *CORE]
    here = run(build(tmp_path / "here", sources, *FLAGS), "texts", cwd=tmp_path)
    there = run(*aarch64(tmp_path / "there", sources), "texts", cwd=tmp_path)
    assert len(here.splitlines()) == 10
    assert here == there
