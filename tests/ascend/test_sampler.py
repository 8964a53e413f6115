# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's rejection sampler over the stand-in: its own unit tests, and what sam_core.verify gives it."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ascend_engine import ENVIRONMENT, STANDIN

SDIST = "vllm_ascend-0.11.0.tar.gz"
FOLDERS = [os.environ.get("PATCHSET_SDISTS"), Path(__file__).parents[2] / ".cache" / "sdists"]


def test_a_step_waits_for_nothing(npu_unit):
    assert npu_unit["check_rejection_sampler_waits_for_nothing"] is None


def test_a_step_gives_the_tokens_of_the_loops(npu_unit):
    assert npu_unit["check_rejection_sampler_gives_the_loops_tokens"] is None


def test_upstreams_own_unit_tests(tmp_path):
    sdist = next((Path(folder, SDIST) for folder in FOLDERS if folder and Path(folder, SDIST).is_file()), None)
    if sdist is None:
        pytest.skip(f"{SDIST}, which holds upstream's tests, is in neither $PATCHSET_SDISTS nor .cache/sdists")
    wanted = (
        "tests/__init__.py",
        "tests/ut/__init__.py",
        "tests/ut/base.py",
        "tests/ut/conftest.py",
        "tests/ut/sample/",
    )
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if member.isfile() and path.startswith(wanted):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_bytes(archive.extractfile(member).read())
    path = os.pathsep.join([str(tmp_path), str(STANDIN)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ut/sample/test_rejection_sampler.py"],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "VLLM_VERSION": "0.11.0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
