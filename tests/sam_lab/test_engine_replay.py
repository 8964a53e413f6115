# SPDX-License-Identifier: Apache-2.0
"""A small replay through the real engine: every arm returns the recorded answers, and drafts if it should."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import refused

from sam_lab import __main__ as lab
from sam_lab.engine_replay.command import Records
from sam_lab.engine_replay.report import report
from sam_lab.recordings import DATA

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = DATA / "rl-rollouts-qwen3b.jsonl.gz"
SMALL = ["--shape", "tiny", "--groups", "2", "--per-group", "3", "--batches", "1", "--tokens", "200", "--k", "5"]
TICKING = """
import itertools, sys, time
ticks = itertools.count()
time.process_time = lambda: next(ticks) / 1000
from sam_lab.engine_replay.command import set_environment
set_environment(second=False)
sys.path.append("tests/common")
import asynchronous_cpu
asynchronous_cpu.allow()
from sam_lab.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command with asynchronous scheduling on vLLM's CPU backend. Its clock advances at each reading, so all steps
take equally long on any machine, drafts cost nothing, and switch auto drafts whenever it finds any."""


@pytest.fixture(scope="session")
def small_tokens(tmp_path_factory):
    """Return a file of FIXTURE's answers with token IDs renumbered in order of first occurrence. The vocabulary is then
    thousands of tokens, not 150,000; computing logits for those would take most of the time."""
    path, numbers = tmp_path_factory.mktemp("answers") / "answers.jsonl", {}
    with gzip.open(FIXTURE, "rt") as lines, path.open("w") as out:
        for answer in map(json.loads, lines):
            for tokens in (answer["prompt_ids"], answer["response_ids"]):
                tokens[:] = [numbers.setdefault(token, len(numbers)) for token in tokens]
            out.write(json.dumps(answer) + "\n")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["--arms", "ngram", "batch:5:1", "auto"],
        pytest.param(["--arms", "off", "batch"], marks=pytest.mark.slow),
        pytest.param(
            ["--against", "plain@async", "--arms", "batch@async", "auto", "--temperature", "1", "--verify", "seeded"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["greedy", "greedy-off", "sampled"],
)
def test_every_arm_gives_the_recorded_answers(tmp_path, small_tokens, capsys, monkeypatch, words):
    words = ["engine-replay", str(small_tokens), *words, *SMALL, "--out", str(tmp_path)]
    # Compiling and zeroing memory would take longer than the run itself.
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", TICKING, *words]
    ended = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    result = json.loads((tmp_path / "engine-replay.json").read_text())
    assert result["wrong"] == [] and result["silent"] == []
    arms, against = result["arms"], result["settings"]["against"]
    assert list(arms) == [against, *result["settings"]["arms"]]
    assert arms[against]["gain_total"] == 1
    for name, values in arms.items():
        drafts = name not in ("plain", "plain@async", "off")
        assert (values["drafted"] > 0) == (values["accepted"] > 0) == drafts, name
        assert (values["engine_steps"] < arms[against]["engine_steps"]) == drafts, name
    assert (tmp_path / "engine-replay.png").stat().st_size > 10_000
    settings = json.loads((tmp_path / "runs.jsonl").open().readline())
    assert bool(Records(tmp_path / "runs.jsonl", settings, True).learned) == ("auto" in arms)

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "sam_lab.engine_replay.engine", None)
    capsys.readouterr()
    assert lab.main([*words, "--resume", "--tail", "2"]) == 0 and "plain" in capsys.readouterr().out
    assert lab.main([*words, "--resume", "--seed", "5"]) == 2 and "other settings" in capsys.readouterr().err
    assert lab.main(words) == 2 and "engine_replay.engine" in capsys.readouterr().err, "an engine could be started here"


def test_a_run_that_was_killed_in_its_line_is_run_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    for written in ("", '{"k": 3'):
        path.write_text(written)
        assert Records(path, {"k": 3}, resume=True).done == {}
    Records(path, {"k": 3}, resume=True).add({"arm": "plain", "batch": 0}, None)
    with open(path, "a") as file:
        file.write('{"arm": "off", "ba')
    for _ in range(2):
        found = Records(path, {"k": 3}, resume=True)
        assert list(found.done) == [("plain", 0)]
    found.add({"arm": "off", "batch": 0}, None)
    assert len(Records(path, {"k": 3}, resume=True).done) == 2


def test_a_wrong_answer_and_an_arm_that_is_silent_are_named(tmp_path, capsys):
    step = {"context": 9, "prefill": False, "s": 1.0, "running": 1, "rows": 1}
    step |= {"drafted": 0, "emitted": 1, "gaining": 1}
    runs = [{"arm": arm, "batch": 0, "wrong": wrong, "steps": [step]} for arm, wrong in (("plain", []), ("auto", [3]))]
    result = report(runs, 8, tmp_path, {})
    assert result["wrong"] == [("auto", 0, 3)] and result["silent"] == ["auto"]
    printed = capsys.readouterr().out
    assert "WRONG: auto, batch 0: request 3" in printed and "SILENT: auto" in printed


@pytest.mark.parametrize(
    "words, said",
    [
        ([FIXTURE, "--arms", "fast"], "unknown arm 'fast'"),
        ([FIXTURE, "--arms", "ngram@async"], "unknown arm 'ngram@async': choose from plain, off, ngram, "),
        ([FIXTURE, "--batches", "5000"], "are needed: lower --batches"),
        ([FIXTURE, "--groups", "0"], "argument --groups: invalid positive number value: '0'"),
        ([FIXTURE, "--part", "dev", "--groups", "50"], "has 11 groups"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path, capsys, words, said):
    assert said in refused(lab.main, capsys, "engine-replay", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
