# SPDX-License-Identifier: Apache-2.0
"""Links in the documentation lead somewhere, both languages have the same tables and commands, and every patch is explained."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for folder in (".", "docs", "patches", "sam_core") for path in (ROOT / folder).glob("*.md"))
PAIRS = [path for path in PAGES if path.with_suffix(".zh.md").exists() and path.stem != "design-sam-core"]
"""The design of sam_core has words in its figures, and tests/sam_core/test_design.py."""
NUMBER = r"\d+(?:[.,]\d+)+|(?!10\b)\d\d+"
PATCHES = {"vllm-0.11": "docs/ascend.md", "vllm-0.23": "docs/how-it-works.md"}


def prose(page):
    """A page without its blocks in fences."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page):
    """The headings of a page as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAIRS, ids=lambda page: page.stem)
def test_languages(page):
    """Numbers up to ten, which NUMBER leaves out, may be words in the other language."""
    texts = [prose(path) for path in (page, page.with_suffix(".zh.md"))]
    tables = [re.findall(r"^\|.*", text, re.MULTILINE) for text in texts]
    numbers = [[sorted(re.findall(NUMBER, row)) for row in rows] for rows in tables]
    assert numbers[0] == numbers[1]
    commands = [re.findall(r"^ {4,}(\S.*?)(?: +#.*)?$", text, re.MULTILINE) for text in texts]
    assert commands[0] == commands[1]


@pytest.mark.parametrize("pin_set", PATCHES)
def test_every_patch_has_its_row(pin_set):
    """In tables of numbered rows whose first heading has the module's name."""
    folder = ROOT / "patches" / pin_set
    for page in (ROOT / PATCHES[pin_set], (ROOT / PATCHES[pin_set]).with_suffix(".zh.md")):
        tables = re.findall(r"^\| ([^|\n]*) \|.*\n\|-.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
        for module in tomllib.loads((folder / "pins.toml").read_text())["module"]:
            name = module.replace("_", "-")
            (rows,) = [rows for title, rows in tables if name in title.lower().split() and re.match(r"\| \d{4}", rows)]
            explained = re.findall(r"^\| (\d{4})", rows, re.MULTILINE)
            assert explained == sorted(patch.name[:4] for patch in folder.glob(f"{module}/*.patch")), (
                page.name,
                module,
            )
