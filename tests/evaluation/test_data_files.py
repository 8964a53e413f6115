# SPDX-License-Identifier: Apache-2.0
"""Data preparation from the command line: Parquet in and out, and records."""

import hashlib
import json
import shutil

import pandas
import pytest

from llm_rl.data import __main__ as command
from llm_rl.data.prepare import check
from llm_rl.data.schemas import verl_row
from llm_rl.errors import UserError

ROWS = [verl_row("math_dapo", f"What is {i} + 1?", str(i + 1), f"{n}-{i}") for n in range(100) for i in range(6)]
"""Rows like the published DAPO-Math-17k: each prompt occurs 100 times, each time with an index of its own."""


def prepare(*words):
    return command.main(["prepare", *map(str, words)])


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path):
    """A folder of sources: dapo.parquet, and gsm8k.jsonl with a bad row."""
    made = tmp_path / "sources"
    made.mkdir()
    pandas.DataFrame(ROWS).to_parquet(made / "dapo.parquet")
    lines = [json.dumps({"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"}) for i in range(3)]
    (made / "gsm8k.jsonl").write_text("\n".join([lines[0], '{"question": "What', *lines[1:]]))
    return made


@pytest.mark.parametrize("source", ["x.parquet", "x.parquet.json"])
def test_a_data_set_does_not_replace_its_source(folder, source, capsys):
    path = (folder / "dapo.parquet").rename(folder / source)
    before = path.read_bytes()
    assert prepare("dapo-math-17k", "--source", path, "--out", folder / "x.parquet") == 1
    assert f"{path} is also an input or another output" in capsys.readouterr().err and path.read_bytes() == before


def test_dapo_without_its_copies(folder, tmp_path, capsys):
    out = tmp_path / "made" / "dapo.parquet"
    assert prepare("dapo-math-17k", "--source", folder / "dapo.parquet", "--out", out) == 0
    made = pandas.read_parquet(out).to_dict("records")
    for row, expected in zip(made, ROWS[:6], strict=True):
        assert row | {"prompt": list(row["prompt"])} == expected
    record = json.loads((tmp_path / "made" / "dapo.parquet.json").read_text())
    counts = {"rows_in": 600, "rows": 6, "duplicates_removed": 594, "max_copies_of_a_prompt": 100, "bad_rows": 0}
    assert {name: record[name] for name in counts} == counts
    assert record["source_sha256"] == sha256((folder / "dapo.parquet").read_bytes())
    assert record["sha256"] == sha256(out.read_bytes())
    assert sorted(path.name for path in out.parent.iterdir()) == ["dapo.parquet", "dapo.parquet.json"]
    assert "duplicates_removed       594" in capsys.readouterr().out


def test_a_run_notices_a_public_file_under_a_recipes_name(folder, tmp_path):
    """A record must match its file. Without one, a file is refused if it has verl's schema and repeats its prompts."""
    out = tmp_path / "dapo-math-17k.parquet"
    words = ["dapo-math-17k", "--source", folder / "dapo.parquet", "--out", out]
    for kept in ((), ("--keep-duplicates",)):
        assert prepare(*words, *kept) == 0
        check(out)
    shutil.copy(folder / "dapo.parquet", out)
    record = tmp_path / "dapo-math-17k.parquet.json"
    with pytest.raises(UserError, match="does not match its record dapo-math-17k.parquet.json"):
        check(out)
    record.write_text("{}")
    with pytest.raises(UserError, match="is not a record of llm_rl.data"):
        check(out)
    record.unlink()
    with pytest.raises(UserError, match="has 600 rows of 6 prompts and no record of llm_rl.data"):
        check(out)
    for own in (ROWS[:6], {"question": ["a", "a"]}):
        pandas.DataFrame(own).to_parquet(out)
        check(out)


def test_a_bad_row_stops_it_unless_it_is_skipped(folder, tmp_path, capsys):
    """verl can score the rows that --skip-bad keeps."""
    from verl.utils.reward_score import default_compute_score

    source, out = folder / "gsm8k.jsonl", tmp_path / "gsm8k.parquet"
    words = ["gsm8k", "--source", source, "--out", out]
    assert prepare(*words) == 1
    said = capsys.readouterr().err
    assert "bad row: line 2 is not JSON" in said and said.splitlines()[-1].startswith("error: 1 of 4 rows are bad")
    assert not out.exists()
    assert prepare(*words, "--skip-bad") == 0
    assert sorted(path.name for path in tmp_path.glob("*gsm8k*")) == ["gsm8k.parquet", "gsm8k.parquet.json"]
    record = json.loads((tmp_path / "gsm8k.parquet.json").read_text())
    assert (record["source"], record["rows"], record["bad_rows"]) == (str(source), 3, 1)
    for row in pandas.read_parquet(out).to_dict("records"):
        truth = row["reward_model"]["ground_truth"]
        assert default_compute_score(row["data_source"], f"so\n#### {truth}", truth) == 1
        assert default_compute_score(row["data_source"], f"so\n#### {truth}0", truth) == 0


def test_a_missing_source_and_a_torn_file_are_refused(folder, tmp_path, capsys):
    content, out = (folder / "dapo.parquet").read_bytes(), tmp_path / "a.parquet"
    (folder / "torn.parquet").write_bytes(content[: len(content) // 2])
    for name, said in (
        ("none.parquet", "there is no file"),
        ("torn.parquet", "torn.parquet is not a complete Parquet file"),
    ):
        assert prepare("dapo-math-17k", "--source", folder / name, "--out", out) == 1
        assert said in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gsm8k", "--out", "a.parquet"], "required: --source"),
        (["gsm8k", "--source", "x", "--out", "a.json"], "--out must end in .parquet"),
    ],
)
def test_wrong_calls_are_refused(words, reason, capsys):
    with pytest.raises(SystemExit, match="2"):
        prepare(*words)
    assert reason in capsys.readouterr().err
