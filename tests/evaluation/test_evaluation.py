# SPDX-License-Identifier: Apache-2.0
"""The accuracy checks on real engines with the tiny model: two engines, without and with SAM, that all tests share."""

import contextlib
import json
import os
from unittest import mock

os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

import pytest

from llm_rl import check_operators
from llm_rl.errors import UserError
from llm_rl.evaluation import __main__ as command
from llm_rl.evaluation import generate
from llm_rl.evaluation.engine import Engine
from llm_rl.qwen3 import tiny_model

SETTINGS = {"max_model_len": 1152, "max_num_seqs": 16, "dtype": "float32", "max_num_batched_tokens": 2048}
SAM = {"rule": "oldest", "sources": ["request"], "threshold": 16, "min_prob": 0, "verify": "seeded"}
MODEL = ["--model", str(tiny_model.FOLDER), "--dtype", "float32"]
WORDS = [*MODEL, "--data", str(tiny_model.FOLDER / "test.parquet"), "--max-tokens", "1024", "--batch", "16"]


@pytest.fixture(scope="module")
def engines():
    """Engines by k, their number of draft tokens; k = 0 is without speculation."""
    settings = {"model": str(tiny_model.FOLDER), **SETTINGS}
    with Engine(settings, 0, SAM) as off, Engine(settings, 3, SAM) as on:
        yield {0: off, 3: on}


@pytest.fixture
def use(engines, monkeypatch):
    """Make the checks use these engines; return the list of the k that they asked for."""
    used = []

    def start(settings, k, sam):
        used.append(k)
        if k not in engines:
            raise UserError("the engine did not start")
        return contextlib.nullcontext(engines[k])

    for module in (generate, check_operators):
        monkeypatch.setattr(module, "Engine", start)
    return used


def run(sam, out, *more):
    made = ["run", *WORDS, "--limit", "6", "--n", "2", "--temperature", "1", "--verify", "seeded", "--sam", sam]
    return command.main([*made, "--out", str(out), *more])


def rows(path):
    return {row["key"]: [a["hash"] for a in row["answers"]] for row in generate.read(path)[1].values()}


def test_off_and_on_are_equal_token_for_token(use, tmp_path, capsys):
    off, on = tmp_path / "off.jsonl", tmp_path / "on.jsonl"
    assert run("off", off) == 0 and run("batch", on) == 0
    assert use == [0, 3]
    assert command.main(["compare", str(off), str(on), "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["drafted"] > found["accepted"] > 100 and (found["questions"], found["equal_answers"]) == (6, 12)
    assert found["off"] == found["on"] and found["off"]["value"] > 0.5
    assert "All 12 answers are equal token for token" in capsys.readouterr().out
    header, _ = generate.read(on)
    assert header["device"] == "cpu" and header["sam_options"] == SAM


def test_an_interrupted_run_goes_on_with_the_missing_questions(use, tmp_path, capsys):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert run("batch", whole) == 0
    with mock.patch("os.fsync", side_effect=[None, KeyboardInterrupt]):
        assert run("batch", broken) == 130
    assert len(rows(broken)) == 2
    assert run("batch", broken) == 0
    assert "2 of 6 questions are answered" in capsys.readouterr().out
    assert rows(broken) == rows(whole)


def test_a_run_whose_drafts_are_all_rejected_fails(use, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Engine, "counted", lambda self: {"drafted": 5, "accepted": 0})
    assert run("batch", tmp_path / "on.jsonl", "--limit", "1") == 1
    assert "no draft was accepted: this run shows nothing" in capsys.readouterr().err


def test_operators_agree(use, tmp_path, monkeypatch):
    words = [*MODEL, "--tokens", "64", "--out", str(tmp_path)]
    assert check_operators.main(words) == 0
    found = json.loads((tmp_path / "check-operators.json").read_text())
    assert found["tokens"] == 4 * 64 and found["drafted"] > found["accepted"] > 50
    assert found["largest"] <= 1e-4 and len(found["by_place"]) == 4
    assert found["mean_log_prob"] < -0.01, "tokens that are all certain would show no difference"

    compare = check_operators.compare

    def one_far_off(decoded, verified):
        verified[2].log_probs[30] -= 0.001
        return compare(decoded, verified)

    monkeypatch.setattr(check_operators, "compare", one_far_off)
    assert check_operators.main(words) == 1
