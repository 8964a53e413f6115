# SPDX-License-Identifier: Apache-2.0
"""ci/build-site builds the documentation in both languages, and refuses a broken link."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = """mkdocs.yml ci/build-site LICENSE NOTICE patches/README.md patches/pull-requests.md ansible/README.md
    ansible/tests/bed/README.md llm_rl/article.json research/trials.md sam_lab/bench/targets.toml sam_lab/data/README.md
    research/article.py tests/engine/conftest.py tests/patches/npu/README.md tests/patches/npu/operators.csv
    tests/runner2/conftest.py""".split()
SHOWN_AS_TEXT = re.compile(r"<p>(?:(?!</p>).)*?\n(?:- |\d\. |\| )", re.DOTALL)
"""A list or a table that was not recognized."""


@pytest.fixture
def tree(tmp_path):
    """The documentation and what builds it, in a folder of its own."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    files = [*OTHERS, *(path.relative_to(ROOT) for path in ROOT.glob("*.md"))]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def build(tree):
    return subprocess.run([sys.executable, tree / "ci" / "build-site"], capture_output=True, text=True)


def test_both_languages_are_built(tree):
    done = build(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tree / "build" / "site"
    pages = {path.parent.relative_to(site).as_posix(): path.read_text() for path in site.rglob("index.html")}
    assert "<h1" in pages["recipes"] and "配方" in pages["zh/recipes"]
    assert "(<code>LICENSE</code>)" in pages["."]  # a link that leaves the site
    for name, page in pages.items():
        assert not SHOWN_AS_TEXT.search(page), name


@pytest.mark.parametrize("link", ["missing.md", "options.md#missing", "../missing.md"])
def test_a_broken_link_is_an_error(tree, link):
    page = tree / "docs" / "install.md"
    page.write_text(page.read_text() + f"\n[text]({link})\n")
    done = build(tree)
    assert done.returncode != 0
    assert "missing" in done.stderr
