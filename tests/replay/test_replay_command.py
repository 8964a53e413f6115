# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab replay`: what it prints and writes, and what it refuses in one sentence."""

import json
import subprocess
import sys
from functools import partial

import commands
import pytest
from recording import line, recording, write
from sam_core.corpus import build_corpus

from sam_lab.__main__ import main

RULE = ["--rule", "newest"]
refused = partial(commands.refused, main)


@pytest.fixture
def answers(tmp_path):
    return recording(tmp_path / "a.jsonl")


def run(answers, out, *words):
    """The figures that a call of the command writes."""
    assert main(["replay", str(answers), *map(str, words), "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_replay_prints_a_table_and_writes_the_same_figures(answers, tmp_path):
    words = [sys.executable, "-m", "sam_lab", "replay", answers, *RULE, "--context", "request", "history", "--k", "2"]
    done = subprocess.run([*words, "6", "--json", tmp_path / "o"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    written = json.loads((tmp_path / "o").read_text())
    assert [(r["context"], r["k"]) for r in written] == [("request", 2), ("request", 6), ("history", 2), ("history", 6)]
    table = [line.split() for line in done.stdout.splitlines()[1:] if not line.startswith("geometric")]
    for result, row in zip(written, table, strict=True):
        assert row[:3] == ["a.jsonl", result["context"], f"k={result['k']}"] and float(row[3]) > 1
        assert float(row[3]) == pytest.approx(result["tokens_per_step"], abs=6e-4)
        assert result["drafter"] == {"rule": "newest"} and result["by_source"]["request"]["drafts"] > 0


def test_command_without_its_packages_is_refused(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sam_lab.bench.command", None)
    assert "error: bench needs the package sam_lab.bench.command, which is not installed" in refused(capsys, "bench")


def test_limits_reach_the_draw(answers, tmp_path):
    (limited,) = run(answers, tmp_path / "o", *RULE, "--k", 3, "--context", "request", "--max-tokens", 1)
    assert limited["requests"] == 2  # one group: a prompt's answers of one epoch


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rule", "best"], "best"),
        (["--rule", "suffix-device", "--min-prob", "0.1"], "suffix-device is not sam_core's and takes no options"),
        (["--k", "99"], "k is 99: it must lie between 0 and 64"),
        (["--min-prob", "2"], "argument --min-prob: invalid probability value: '2'"),
        (["--json", "absent/o.json"], "absent/o.json: No such file or directory"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_refused(answers, capsys, words, sentence):
    assert sentence in refused(capsys, "replay", answers, *words)


def test_bad_files_are_refused(answers, tmp_path, capsys):
    assert refused(capsys, "replay", tmp_path / "no.jsonl") == f"error: {tmp_path}/no.jsonl: No such file or directory"
    before = answers.read_bytes()
    assert f"{answers} is also an input or another output" in refused(capsys, "replay", answers, "--json", answers)
    assert answers.read_bytes() == before
    flat = write(tmp_path / "flat.jsonl", [line()])
    assert f"error: {flat}: context history needs" in refused(capsys, "replay", flat, "--context", "history")


def test_replay_drafts_from_a_corpus(answers, tmp_path):
    words = ["--k", "4", "--context", "request"]
    build_corpus([answers], tmp_path / "made")
    corpora = [], ["--corpus", tmp_path / "made"]
    plain, own = (run(answers, tmp_path / "o", *words, *more)[0]["tokens_per_step"] for more in corpora)
    assert own > 1.5 * plain
