# SPDX-License-Identifier: Apache-2.0
"""Every recipe is listed in docs/recipes.md, in both languages."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["recipes.md", "recipes.zh.md"])
def test_every_recipe_is_listed(page):
    text = (ROOT / "docs" / page).read_text()
    for script in (ROOT / "llm_rl" / "qwen3").glob("run_*.sh"):
        assert f"`{script.name}`" in text
