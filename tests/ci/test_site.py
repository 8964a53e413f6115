# SPDX-License-Identifier: Apache-2.0
"""ci/build-site builds the documentation in both languages, and refuses a broken link."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = (".css", ".csv", ".json", ".md", ".py", ".toml", ".yml", "LICENSE", "NOTICE", "ci/build-site")
"""File name suffixes of the files that pages link to, and of those that build the site."""
SHOWN_AS_TEXT = re.compile(r"<p>(?:(?!</p>).)*?\n(?:- |\d\. |\| )", re.DOTALL)
"""A list or a table that was not recognized."""


@pytest.fixture
def tree(tmp_path):
    """The documentation and what builds it, in a folder of its own."""
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in names:
        if name.startswith("docs/") or name.endswith(LINKED):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
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


def test_broken_links_are_errors(tree):
    page = tree / "docs" / "install.md"
    links = ("missing.md", "options.md#missing", "../missing.md")
    page.write_text(page.read_text() + "".join(f"\n[text]({link})\n" for link in links))
    done = build(tree)
    assert done.returncode != 0
    assert all(f"'{link}'" in done.stderr for link in links), done.stderr
