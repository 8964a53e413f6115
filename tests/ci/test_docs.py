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
PIN_SETS = sorted(path.parent.name for path in ROOT.glob("patches/*/pins.toml"))


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


@pytest.mark.parametrize("pin_set", PIN_SETS)
@pytest.mark.parametrize("page", ["upstream.md", "upstream.zh.md"])
def test_every_patch_has_its_row(page, pin_set):
    """In the section that is named after the pin set, in a table whose first heading is the module's name."""
    folder = ROOT / "patches" / pin_set
    sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    (section,) = [text for text in sections if pin_set in text.partition("\n")[0]]
    tables = re.findall(r"^\| ([^|\n]*) \|.*\n\|-.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    explained = {title.lower(): re.findall(r"^\| (\d{4})", rows, re.MULTILINE) for title, rows in tables}
    modules = tomllib.loads((folder / "pins.toml").read_text())["module"]
    assert explained == {
        module.replace("_", "-"): sorted(patch.name[:4] for patch in folder.glob(f"{module}/*.patch"))
        for module in modules
    }
