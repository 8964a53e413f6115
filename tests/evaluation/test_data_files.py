# SPDX-License-Identifier: Apache-2.0
"""Data preparation from the command line: Parquet in and out, records, and sources with an address."""

import functools
import hashlib
import http.server
import json
import shutil
import threading

import pandas
import pytest

from llm_rl.data import __main__ as command
from llm_rl.data.prepare import check
from llm_rl.errors import UserError
from llm_rl.qwen3 import sums


def dapo_rows(prompts=6, copies=100):
    """DAPO-Math-17k as it is published: every prompt about `copies` times, under indexes of their own."""
    problems = sums.problems(prompts, sums.rng_for(0, "test"))
    rows = [sums.row(f"{copy}-{i}", terms) for copy in range(copies) for i, terms in enumerate(problems)]
    return problems, rows


def prepare(*words):
    return command.main(["prepare", *map(str, words)])


@pytest.fixture
def folder(tmp_path):
    """A folder of sources: dapo.parquet, and gsm8k.jsonl with a bad row."""
    made = tmp_path / "sources"
    made.mkdir()
    pandas.DataFrame(dapo_rows()[1]).to_parquet(made / "dapo.parquet")
    lines = [json.dumps({"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"}) for i in range(3)]
    (made / "gsm8k.jsonl").write_text("\n".join([lines[0], '{"question": "What', *lines[1:]]) + "\n")
    return made


@pytest.fixture
def url(folder):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_dapo_without_its_copies(folder, tmp_path, capsys):
    out = tmp_path / "made" / "dapo.parquet"
    assert prepare("dapo-math-17k", "--source", folder / "dapo.parquet", "--out", out) == 0
    problems, rows = dapo_rows()
    made = pandas.read_parquet(out).to_dict("records")
    for row, expected in zip(made, rows[:6], strict=True):
        assert row | {"prompt": list(row["prompt"])} == expected
    record = json.loads((tmp_path / "made" / "dapo.parquet.json").read_text())
    counts = {"rows_in": 600, "rows": 6, "duplicates_removed": 594, "max_copies_of_a_prompt": 100, "bad_rows": 0}
    assert {name: record[name] for name in counts} == counts
    assert record["source_sha256"] == hashlib.sha256((folder / "dapo.parquet").read_bytes()).hexdigest()
    assert record["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert sorted(path.name for path in out.parent.iterdir()) == ["dapo.parquet", "dapo.parquet.json"]
    assert "duplicates_removed       594" in capsys.readouterr().out


def test_a_run_notices_a_public_file_under_a_recipes_name(folder, tmp_path):
    """And a file that is not the one of its record; a file of other schema, or without repetitions, is a user's own."""
    out = tmp_path / "dapo-math-17k.parquet"
    words = ["dapo-math-17k", "--source", folder / "dapo.parquet", "--out", out]
    for kept in ((), ("--keep-duplicates",)):
        assert prepare(*words, *kept) == 0
        check(out)
    shutil.copy(folder / "dapo.parquet", out)
    with pytest.raises(UserError, match="is another file than its record dapo-math-17k.parquet.json describes"):
        check(out)
    (tmp_path / "dapo-math-17k.parquet.json").write_text("{}")
    with pytest.raises(UserError, match="is no record of llm_rl.data"):
        check(out)
    (tmp_path / "dapo-math-17k.parquet.json").unlink()
    with pytest.raises(UserError, match="has 600 rows of 6 prompts and no record of llm_rl.data"):
        check(out)
    pandas.DataFrame(dapo_rows()[1][:6]).to_parquet(out)
    check(out)
    pandas.DataFrame({"question": ["a", "a"]}).to_parquet(out)
    check(out)


def test_verl_reads_and_scores_what_is_written(folder, tmp_path):
    from verl.utils.reward_score import default_compute_score

    out = tmp_path / "gsm8k.parquet"
    assert prepare("gsm8k", "--source", folder / "gsm8k.jsonl", "--out", out, "--skip-bad") == 0
    for row in pandas.read_parquet(out).to_dict("records"):
        truth = row["reward_model"]["ground_truth"]
        assert default_compute_score(row["data_source"], f"so\n#### {truth}", truth) == 1
        assert default_compute_score(row["data_source"], f"so\n#### {truth}0", truth) == 0


def test_a_bad_row_stops_it_and_leaves_nothing(folder, tmp_path, capsys):
    out = tmp_path / "gsm8k.parquet"
    words = ["gsm8k", "--source", folder / "gsm8k.jsonl", "--out", out]
    assert prepare(*words) == 1
    said = capsys.readouterr().err
    assert "bad row: line 2 is not JSON" in said and said.splitlines()[-1].startswith("error: 1 of 4 rows are bad")
    assert [path.name for path in tmp_path.iterdir()] == ["sources"]
    assert prepare(*words, "--skip-bad") == 0
    assert len(pandas.read_parquet(out)) == 3
    assert json.loads((tmp_path / "gsm8k.parquet.json").read_text())["bad_rows"] == 1


def test_an_address_is_downloaded_once(folder, url, tmp_path, capsys):
    """After a bad row the download is kept, so that --skip-bad needs no other."""
    out = tmp_path / "gsm8k.parquet"
    words = ["gsm8k", "--source", f"{url}/gsm8k.jsonl", "--out", out]
    assert prepare(*words) == 1
    (folder / "gsm8k.jsonl").unlink()
    assert prepare(*words, "--skip-bad") == 0
    assert json.loads((tmp_path / "gsm8k.parquet.json").read_text())["source"] == f"{url}/gsm8k.jsonl"
    assert sorted(path.name for path in tmp_path.glob("gsm8k*")) == ["gsm8k.parquet", "gsm8k.parquet.json"]
    assert prepare(*words) == 1
    sentence = f"error: {url}/gsm8k.jsonl cannot be downloaded: HTTP 404 File not found"
    assert capsys.readouterr().err.splitlines()[-1] == sentence


def test_another_version_of_the_source_is_refused(folder, tmp_path, capsys):
    words = ["dapo-math-17k", "--source", folder / "dapo.parquet", "--out", tmp_path / "a.parquet"]
    assert prepare(*words, "--sha256", "0" * 64) == 1
    assert "it is another version, or damaged" in capsys.readouterr().err
    digest = hashlib.sha256((folder / "dapo.parquet").read_bytes()).hexdigest()
    assert prepare(*words, "--sha256", digest) == 0


def test_a_torn_parquet_file_is_named(folder, tmp_path, capsys):
    content = (folder / "dapo.parquet").read_bytes()
    (folder / "torn.parquet").write_bytes(content[: len(content) // 2])
    assert prepare("dapo-math-17k", "--source", folder / "torn.parquet", "--out", tmp_path / "a.parquet") == 1
    assert "torn.parquet is no whole Parquet file" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gsm8k", "--out", "a.parquet"], "gsm8k needs --source"),
        (["sums", "--source", "x", "--out", "a.parquet"], "sums are made, they have no --source"),
        (["sums", "--out", "a.json"], "--out must end in .parquet"),
        (["sums", "--out", "a.parquet", "--rows", "0"], "--rows must be at least 1"),
        (["mnist", "--out", "a.parquet"], "invalid choice: 'mnist'"),
    ],
)
def test_wrong_calls_are_refused(words, reason, capsys):
    with pytest.raises(SystemExit, match="2"):
        prepare(*words)
    assert reason in capsys.readouterr().err
