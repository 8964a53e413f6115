# SPDX-License-Identifier: Apache-2.0
"""The pin set's environment is the one that its files describe, and the libraries left out of it are not missed."""

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINSET = Path(sys.prefix).name


@pytest.fixture(scope="module")
def pins():
    return tomllib.loads((ROOT / "patches" / PINSET / "pins.toml").read_text())


def test_modules_have_the_pinned_versions(pins):
    installed = {
        dist.metadata["Name"].lower(): dist.version.partition("+")[0] for dist in importlib.metadata.distributions()
    }
    found = 0
    for name, module in pins["module"].items():
        versions = {installed[dist] for dist in module["dists"] if dist in installed}
        assert versions <= {module["version"]}, name
        found += len(versions)
    assert found >= 2


def test_patches_are_on(pins):
    patchset = [ROOT / "patches" / "patchset", "apply", PINSET, "--env", sys.prefix]
    done = subprocess.run([sys.executable, *patchset], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torch_computes_on_the_cpu_without_the_cuda_parts_left_out():
    import torch

    matrix = torch.eye(64, dtype=torch.float64) * 2
    assert torch.linalg.solve(matrix, matrix).trace() == 64
    assert torch.linalg.svdvals(matrix).sum() == 128
    assert torch.fft.ifft(torch.fft.fft(torch.ones(8))).real.sum() == 8
    assert not torch.cuda.is_available()


@pytest.mark.slow
def test_tests_are_collected_without_the_other_pin_sets(pins, tmp_path):
    """A pin set is retired by removing its folder; tests/ci/test_retirement.py has what needs no environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        others = name.startswith("patches/vllm-") and not name.startswith(f"patches/{PINSET}/")
        if (ROOT / name).is_file() and not others:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    assert [path.parent.name for path in tmp_path.glob("patches/*/pins.toml")] == [PINSET]
    for folder in pins["tests"]:
        collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", folder]
        done = subprocess.run(collect, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
