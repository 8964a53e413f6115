# SPDX-License-Identifier: Apache-2.0
"""Links lead somewhere, both languages have the same tables and commands, generated tables and figures are current."""

import importlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for folder in (".", "docs", "patches", "sam_core") for path in (ROOT / folder).glob("*.md"))
PAIRS = [path for path in PAGES if path.with_suffix(".zh.md").exists()]
REQUESTS = sorted(ROOT.glob("patches/*/requests.toml"))
NUMBER = r"\d+(?:[.,]\d+)+|(?!10\b)\d\d+"


def prose(page):
    """The text of a page without its fenced blocks."""
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
    """Both languages have the same numbers in tables and the same commands. Numbers up to ten may be words."""
    texts = [prose(path) for path in (page, page.with_suffix(".zh.md"))]
    tables = [re.findall(r"^\|.*", text, re.MULTILINE) for text in texts]
    numbers = [[sorted(re.findall(NUMBER, row)) for row in rows] for rows in tables]
    assert numbers[0] == numbers[1]
    commands = [re.findall(r"^ {4,}(\S.*?)(?: +#.*)?$", text, re.MULTILINE) for text in texts]
    assert commands[0] == commands[1]


def test_generated_tables_are_current():
    done = subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def record(name):
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())["output"]


def evidence_in_prose():
    """The figures of the record `evidence` in docs/results.md outside its tables, in the order of the text."""
    cases = defaultdict(list)
    for row in record("evidence")["rows"]:
        cases[row["set"], row["device"], row["running"]].append(row)

    def arm(case, name):
        return next(row for row in cases[case] if row["arm"] == name or name in row["best_of"])

    def gain(case):
        return arm(case, "auto:15")["pooled"]

    def lead(case, peers=("ngram", "suffix", "suffix-device")):
        peers = [row for row in cases[case] if {*peers} & {*row["best_of"]}]
        return max(peers, key=lambda row: row["pooled"][0])["auto_over"]

    def each(of, device):
        return [of((name, device, 128))[0] for name in ("rl", "long", "math", "code")]

    code = arm(("code", "h100", 128), "auto:15")
    yield from each(gain, "h100")[:3] + each(lead, "h100")[:3]
    yield lead(("rl", "h100", 128), ("ngram", "suffix"))[0]
    yield from (code["pooled"][0], each(lead, "h100")[3], code["worst"])
    yield from (sum(of(case)[1] <= 1 <= of(case)[2] for case in cases) for of in (gain, lead))
    yield from each(lambda case: arm(case, "batch")["auto_over"], "h100")


def replay_in_prose():
    """The figures next to the README's table of evidence: engine replays on an H100, and on an H200 with the plugin."""
    arms = record("engine-replay-h100")["arms"]
    plain, suffix, auto = (arms[arm]["seconds_by_batch"] for arm in ("plain@async", "suffix", "auto@async"))
    over_suffix = [theirs / ours for theirs, ours in zip(suffix, auto, strict=True)]
    yield from sorted(theirs / ours for theirs, ours in zip(plain, auto, strict=True))
    yield from (min(over_suffix), max(over_suffix))
    for replayed in record("engine-replay-h200").values():
        plain, auto = (replayed["arms"][arm]["seconds_by_batch"] for arm in ("plain", "auto"))
        yield from (theirs / ours for theirs, ours in zip(plain, auto, strict=True))


@pytest.mark.parametrize(
    ("page", "begin", "figures"),
    [(page, "<!-- end evidence-gains -->", evidence_in_prose) for page in ("docs/results.md", "docs/results.zh.md")]
    + [(page, "<!-- end evidence -->", replay_in_prose) for page in ("README.md", "README.zh.md")],
)
def test_figures_in_prose_are_those_of_their_records(page, begin, figures):
    text = (ROOT / page).read_text().partition(begin)[2].partition("\n## ")[0]
    text = re.sub(r"<!-- begin (\S+) -->.*<!-- end \1 -->", "", text, flags=re.DOTALL)
    found = re.findall(r"(?<!vLLM )\b\d\.\d\d\b|(?<=[Ii]n )\d+(?= of)|(?<=情况中有 )\d+", text)
    assert found == [f"{x:.2f}" if isinstance(x, float) else str(x) for x in figures()]


@pytest.mark.parametrize("name", ["gain", "gain-zh"])
def test_picture_of_the_gain_is_that_of_its_record(name):
    picture = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
    bars = re.findall(r'<rect x="172" .*?width="(\d+)".*?/><text.*?>([\d.]+)</text>', picture)
    gains = []
    for replayed in record("engine-replay-h200").values():
        seconds = [replayed["arms"][arm]["seconds_by_batch"] for arm in ("plain", "ngram_gpu:3", "auto")]
        gains += [batch[0] / ours for batch in zip(*seconds, strict=True) for ours in batch]
    assert bars == [(f"{130 * gain:.0f}", f"{gain:.2f}") for gain in gains]


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.parent.name)
def test_a_row_of_requests_names_a_test_of_its_environment(path):
    """Each named test exists and runs in the environment. Rows with `drafted` or `excluded` must name a test."""
    requests = tomllib.loads(path.read_text())
    folders = tomllib.loads(path.with_name("pins.toml").read_text())["tests"]
    groups = requests["parameters"] + requests["kinds"]
    for test in {group["test"] for group in groups if "test" in group}:
        file, _, function = test.partition("::")
        assert file.rpartition("/")[0] in folders, f"{test} does not run in this environment"
        assert f"\ndef {function}(" in (ROOT / file).read_text(), f"there is no test {test}"
    for group in groups:
        assert "test" in group or not group.keys() & {"drafted", "excluded"}, f"{group} names no test"


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/results/*.json")), ids=lambda path: path.stem)
def test_a_result_says_where_it_comes_from(path):
    record = json.loads(path.read_text())
    assert list(record) == ["command", "date", "commit", "machine", "output"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"]) and re.fullmatch(r"[0-9a-f]{7,}", record["commit"])


def test_generate_fills_the_tables_of_each_language(tmp_path):
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/page.md", "docs/page.zh.md"):
        (tmp_path / name).write_text("above\n<!-- begin one -->\nold\n<!-- end one -->\nbelow\n")
    tables = {"one": {"en": "[a](page.md)", "zh": "[b](page.md)"}.get}
    with pytest.raises(generate["DocsError"], match="no page has a block for 'two'"):
        generate["generate"](tmp_path, tables | {"two": str})
    stale = ["README.md: one", "docs/page.md: one", "docs/page.zh.md: one"]
    assert generate["generate"](tmp_path, tables, check=True) == stale
    assert "old" in (tmp_path / "docs" / "page.md").read_text()
    assert generate["generate"](tmp_path, tables) == stale
    lines = {"README.md": "[a](docs/page.md)", "docs/page.md": "[a](page.md)", "docs/page.zh.md": "[b](page.md)"}
    assert {name: (tmp_path / name).read_text().splitlines()[3] for name in lines} == lines


def test_chinese_words_that_no_english_text_has_are_an_error(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    records = importlib.import_module("tables._records")
    words = {"head": "列", "gone": "没有了"}
    with pytest.raises(ValueError, match="no English text has 'gone'"):
        records.Table((), list, "head", "key", chinese=words)("zh")
    with pytest.raises(ValueError, match="WORDS has the key 'gone'"):
        records.check_keys("WORDS", words, ["head"])
    with pytest.raises(ValueError, match="WORDS lacks the key 'new'"):
        records.check_keys("WORDS", words, ["head", "gone", "new"])


@pytest.mark.parametrize("page", [*ROOT.glob("docs/recipes.*md")], ids=lambda page: page.name)
def test_every_recipe_is_listed(page):
    for script in (ROOT / "llm_rl" / "qwen3").glob("run_*.sh"):
        assert f"`{script.name}`" in page.read_text()
