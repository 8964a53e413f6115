# SPDX-License-Identifier: Apache-2.0
"""What an image adds to vllm-ascend's exists for aarch64 and x86-64, and fits what that has."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("patches/*/image.lock"))
SOURCE_ONLY = "antlr4-python3-runtime"


@pytest.mark.parametrize("platform", ["aarch64-manylinux_2_31", "x86_64-manylinux_2_31"])
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_every_package_has_a_file_for_the_platform(lock, platform, tmp_path):
    pins = tomllib.loads((lock.parent / "pins.toml").read_text())
    uv = os.environ.get("UV") or Path(sys.executable).with_name("uv")
    words = [uv, "pip", "install", "--quiet", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    words += ["--no-binary", SOURCE_ONLY, "--python-platform", platform, "--target", tmp_path]
    words += ["--python-version", pins["runtime"]["npu"]["python"], "-r", lock]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stderr == "" and done.returncode == 0


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_it_fits_the_packages_of_the_day_when_upstream_s_image_was_built(lock):
    check = [sys.executable, ROOT / "ci/lock-image", lock.parent.name, "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_tests_run_with_the_transformers_of_the_image(lock):
    """vllm-ascend pins its release, and models' classes and tokenizers differ between releases."""
    base = [sys.executable, ROOT / "ci/lock-image", lock.parent.name, "--base"]
    held = subprocess.run(base, capture_output=True, text=True, check=True).stdout.split()
    version = tomllib.loads((lock.parent / "pins.toml").read_text())["runtime"]["cpu"]["transformers"]
    assert [pin for pin in held if pin.startswith("transformers==")] == [f"transformers=={version}"]
