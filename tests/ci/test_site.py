# SPDX-License-Identifier: Apache-2.0
"""ci/build-site builds the documentation in both languages, and refuses a broken link."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """The documentation and what builds it, in a folder of its own."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    pages = [path.relative_to(ROOT) for path in ROOT.glob("*.md")]
    others = ["patches/README.md", "ansible/README.md", "ansible/tests/bed/README.md", "tests/patches/npu/README.md"]
    for path in [*pages, *others, "mkdocs.yml", "ci/build-site", "LICENSE", "NOTICE", "tests/patches/npu/operators.csv"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def build(tree):
    return subprocess.run([sys.executable, tree / "ci" / "build-site"], capture_output=True, text=True)


def test_both_languages_are_built(tree):
    done = build(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tree / "build" / "site"
    assert "<h1" in (site / "recipes" / "index.html").read_text()
    assert "配方" in (site / "zh" / "recipes" / "index.html").read_text()
    index = (site / "zh" / "index.html").read_text()
    assert 'href="recipes/#' in index or 'href="./recipes/#' in index
    for page in site.rglob("index.html"):
        assert "<p>- " not in (text := page.read_text()) and "<p>| " not in text, page  # a list or table that is none


@pytest.mark.parametrize("link", ["missing.md", "options.md#missing", "../missing.md"])
def test_a_broken_link_is_an_error(tree, link):
    page = tree / "docs" / "glossary.md"
    page.write_text(page.read_text() + f"\n[text]({link})\n")
    done = build(tree)
    assert done.returncode != 0
    assert "missing" in done.stderr
