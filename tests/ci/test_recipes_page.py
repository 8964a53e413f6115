# SPDX-License-Identifier: Apache-2.0
"""The table of a recipe's keys in docs/recipes.md is llm_rl/recipe.py's, in both languages."""

import re
from pathlib import Path

import pytest
import yaml

from llm_rl.recipe import KEYS, MAPPINGS

ROOT = Path(__file__).resolve().parents[2]
WORDS = {bool: "true, false", str: "text", list: "list"}


def english_rows():
    """Key, allowed values, default of dapo.yaml and meaning, as the page has them."""
    base = yaml.safe_load((ROOT / "llm_rl" / "qwen3" / "dapo.yaml").read_text())
    return [
        (f"`{key.name}`", allowed(key), default(base, key.name), key.meaning)
        for key in KEYS.values()
        if key.name not in MAPPINGS
    ]


def allowed(key):
    if isinstance(key.kind, tuple):
        text = ", ".join(f"`{word}`" for word in key.kind)
    elif key.kind in (int, float):
        text = f"{'whole ' if key.kind is int else ''}number, {key.min_value:g} or more"
    else:
        text = WORDS[key.kind]
    return text + (" or null" if key.optional else "")


def default(base, name):
    """Its value in dapo.yaml; "each recipe" where that has none."""
    for part in name.split("."):
        if not isinstance(base, dict) or part not in base:
            return "each recipe"
        base = base[part]
    if isinstance(base, str) and (variable := re.fullmatch(r"\$\{oc\.env:(\w+),(.*)\}", base)):
        return f"`${variable[1]}`, else {variable[2] if variable[2] == 'null' else f'`{variable[2]}`'}"
    if isinstance(base, str):
        return f"`{base}`"
    if isinstance(base, bool) or base is None:
        return str(base).lower().replace("none", "null")
    return f"`{', '.join(base)}`" if isinstance(base, list) else f"{base:g}" if isinstance(base, float) else f"{base}"


def rows_of(page):
    text = (ROOT / "docs" / page).read_text()
    table = text[text.index("<!-- keys: begin -->") : text.index("<!-- keys: end -->")]
    return [
        tuple(cell.strip() for cell in row.split(" | ")) for row in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE)
    ]


def test_the_table_has_the_keys_of_a_recipe():
    assert rows_of("recipes.md") == english_rows()


def test_the_chinese_table_has_the_same_keys_values_and_defaults():
    english, chinese = english_rows(), rows_of("recipes.zh.md")
    assert [row[0] for row in chinese] == [row[0] for row in english]
    for ours, theirs in zip(english, chinese, strict=True):
        for a, b in zip(ours[1:3], theirs[1:3], strict=True):
            assert re.findall(r"`[^`]*`|[\d.]+|null|true|false", a) == re.findall(
                r"`[^`]*`|[\d.]+|null|true|false", b
            ), ours
        assert re.search(r"[\u4e00-\u9fff]", theirs[3]) or theirs[3] == "dual clip"


@pytest.mark.parametrize("page", ["recipes.md", "recipes.zh.md"])
def test_every_recipe_is_listed(page):
    text = (ROOT / "docs" / page).read_text()
    for script in (ROOT / "llm_rl" / "qwen3").glob("run_*.sh"):
        assert f"`{script.name}`" in text
