# SPDX-License-Identifier: Apache-2.0
"""What an image adds to vLLM's or vllm-ascend's image exists for aarch64 and x86-64, and fits that image's packages."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("patches/*/image.lock"))
quickly = pytest.mark.parametrize(
    "lock",
    [pytest.param(lock, id=lock.parent.name, marks=[pytest.mark.slow] * (lock != LOCKS[-1])) for lock in LOCKS],
)
"""The requirements of the last pin set; `make test-all` also resolves the others."""
SOURCE_ONLY = "antlr4-python3-runtime"
sys.path.insert(0, str(ROOT / "ci"))
from lock_files import locked  # noqa: E402


def read_pins(folder):
    return tomllib.loads((folder / "pins.toml").read_text())


@pytest.mark.parametrize("platform", ["aarch64-manylinux_2_31", "x86_64-manylinux_2_31"])
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_every_package_has_a_file_for_the_platform(lock, platform, tmp_path):
    (device,) = read_pins(lock.parent)["runtime"].keys() - {"cpu"}
    uv = os.environ.get("UV") or Path(sys.executable).with_name("uv")
    words = [uv, "pip", "install", "--quiet", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    words += ["--no-binary", SOURCE_ONLY, "--python-platform", platform, "--target", tmp_path]
    words += ["--python-version", read_pins(lock.parent)["runtime"][device]["python"], "-r", lock]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stderr == "" and done.returncode == 0


@quickly
def test_it_fits_the_packages_of_the_day_when_upstream_s_image_was_built(lock):
    """Tests run with the image's release of transformers, because models' classes and tokenizers differ between
    releases. vllm-ascend pins a release, which image.lock may replace."""
    check = [sys.executable, ROOT / "ci/lock-image", lock.parent.name, "--check", "--base"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    versions = dict(pin.split("==") for pin in [*done.stdout.split(), *locked(lock)])
    assert versions["transformers"] == read_pins(lock.parent)["runtime"]["cpu"]["transformers"]


def test_dockerfile_agrees_with_pins_and_installs_what_is_locked():
    folder = ROOT / "patches" / "gpu"
    pins, pinned = read_pins(folder), dict(pin.split("==") for pin in locked(folder / "image.lock"))
    vllm = pins["module"]["vllm"]["version"]
    assert pins["runtime"]["gpu"]["image"] == f"vllm/vllm-openai:v{vllm}"
    assert f"\nvllm=={vllm}\n" in (folder / "image-base.in").read_text()
    assert pinned["verl"] == pins["module"]["verl"]["version"]
    same = ("ray", "transformers")
    assert {name: pinned[name] for name in same} == {name: pins["runtime"]["cpu"][name] for name in same}
    lines = [line for line in (folder / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    steps = [line.split() for line in lines]
    assert [words[1:] for words in steps if words[0] == "FROM"] == [[pins["runtime"]["gpu"]["image"]]]
    copied = [ROOT / name for words in steps if words[0] == "COPY" for name in words[1:-1]]
    for words in (words for words in steps if "install" in words):
        assert "--no-deps" in words and "--no-build-isolation" in words, "nothing else may come from an index"
        lock = words[words.index("-r") + 1] if "-r" in words else None
        names = [lock] if lock else [word for word in words[words.index("install") + 1 :] if word.startswith(".")]
        assert not lock or "--require-hashes" in words
        assert names and all(any((ROOT / name).is_relative_to(path) for path in copied) for name in names)
        assert all((ROOT / name).is_file() if lock else (ROOT / name / "pyproject.toml").is_file() for name in names)


def test_readme_installs_the_pinned_releases():
    pins = read_pins(ROOT / "patches" / "gpu")["module"]
    found = dict(re.findall(r"\b(vllm|verl)==(\S+)", (ROOT / "README.md").read_text()))
    assert found == {name: module["version"] for name, module in pins.items()}
