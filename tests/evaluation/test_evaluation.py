# SPDX-License-Identifier: Apache-2.0
"""The accuracy checks on real engines with the tiny model: two engines, without and with SAM, that all tests share."""

import contextlib
import json
import os

os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

import pytest

from llm_rl import check_operators
from llm_rl.errors import UserError
from llm_rl.evaluation import __main__ as command
from llm_rl.evaluation import acceptance, generate
from llm_rl.evaluation.engine import Engine
from llm_rl.qwen3 import tiny_model

SETTINGS = {"max_model_len": 1152, "max_num_seqs": 16, "dtype": "float32", "max_num_batched_tokens": 2048}
SAM = {"rule": "oldest", "sources": ["request"], "threshold": 16, "min_prob": 0, "verify": "seeded"}


@pytest.fixture(scope="module")
def model():
    return tiny_model.FOLDER


@pytest.fixture(scope="module")
def engines(model):
    """By k: 0 without speculation."""
    settings = {"model": str(model), **SETTINGS}
    with Engine(settings, 0, SAM) as off, Engine(settings, 3, SAM) as on:
        yield {0: off, 3: on}


@pytest.fixture
def use(engines, monkeypatch):
    """Makes the checks use these engines; `used` lists the settings that they asked for."""
    used = []

    def start(settings, k, sam):
        used.append((settings, k, sam))
        if k not in engines:
            raise UserError("the engine did not start")
        return contextlib.nullcontext(engines[k])

    for module in (generate, acceptance, check_operators):
        monkeypatch.setattr(module, "Engine", start)
    return used


@pytest.fixture(scope="module")
def words(model, tmp_path_factory):
    """What all runs are called with."""
    made = ["--model", model, "--data", model / "test.parquet", "--max-tokens", "1024", "--batch", "16"]
    return [*made, "--dtype", "float32"]


def run(words, sam, out, *more):
    made = ["run", *words, "--limit", "6", "--n", "2", "--temperature", "1", "--verify", "seeded", "--sam", sam]
    return command.main([*map(str, made), "--out", str(out), *more])


def rows(path):
    return {row["key"]: [a["hash"] for a in row["answers"]] for row in generate.read(path)[1].values()}


def test_off_and_on_are_equal_token_for_token(use, words, tmp_path, capsys):
    off, on = tmp_path / "off.jsonl", tmp_path / "on.jsonl"
    assert run(words, "off", off) == 0 and run(words, "batch", on) == 0
    assert [k for _, k, _ in use] == [0, 3]
    assert command.main(["compare", str(off), str(on), "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["drafted"] > found["accepted"] > 100
    assert found["questions"] == 6 and found["equal_answers"] == 12
    assert found["off"] == found["on"] and found["off"]["value"] > 0.5
    assert "All 12 answers are equal token for token" in capsys.readouterr().out
    header, _ = generate.read(on)
    assert header["device"] == "cpu" and header["sam_options"] == SAM


def test_an_interrupted_run_goes_on_with_the_missing_questions(use, words, tmp_path, monkeypatch, capsys):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert run(words, "batch", whole) == 0
    written, sync = [], os.fsync

    def interrupt(descriptor):
        sync(descriptor)
        written.append(descriptor)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    assert run(words, "batch", broken) == 130
    monkeypatch.setattr(os, "fsync", sync)
    assert len(rows(broken)) == 2
    assert run(words, "batch", broken) == 0
    assert "2 of 6 questions are answered" in capsys.readouterr().out
    assert rows(broken) == rows(whole)


def test_a_run_whose_drafts_are_all_rejected_fails(use, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Engine, "counted", lambda self: {"drafted": 5, "accepted": 0})
    assert run(words, "batch", tmp_path / "on.jsonl", "--limit", "1") == 1
    assert "no draft was accepted: this run shows nothing" in capsys.readouterr().err


def test_acceptance_by_length(use, words, tmp_path, capsys):
    made = ["acceptance", *words, "--limit", "12", "--k", "3", "--out", tmp_path]
    assert command.main([str(word) for word in made]) == 0
    found = json.loads((tmp_path / "acceptance.json").read_text())
    (one,) = found["sweep"]
    assert one["drafted"] > one["accepted"] > 100
    tokens = one["steps"] * one["tokens_per_step"]
    assert one["steps"] < tokens <= one["steps"] + one["accepted"], "a token a step, and those accepted"
    assert len(one["bins"]) > 1 and all(row["tokens_per_step"] > 1.1 for row in one["bins"])
    assert (tmp_path / "acceptance.png").stat().st_size > 10_000
    assert f"| 3 | {one['tokens_per_step']:.2f} |" in capsys.readouterr().out


def test_a_k_that_fails_loses_only_itself(use, words, tmp_path, capsys):
    out = tmp_path / "made"
    made = ["acceptance", *words, "--limit", "2", "--k", "2", "3", "4", "--out", out]
    assert command.main([str(word) for word in made]) == 1
    said = capsys.readouterr().err
    assert all(f"error: k = {k}: the engine did not start\n" in said for k in (2, 4))
    (one,) = json.loads((out / "acceptance.json").read_text())["sweep"]
    assert one["k"] == 3 and (out / "acceptance.png").exists()


def test_operators_agree(use, model, tmp_path, monkeypatch):
    words = [str(word) for word in ("--model", model, "--dtype", "float32", "--tokens", "64", "--out", tmp_path)]
    assert check_operators.main(words) == 0
    found = json.loads((tmp_path / "check-operators.json").read_text())
    assert found["tokens"] == 4 * 64 and found["drafted"] > found["accepted"] > 50
    assert found["largest"] <= 1e-4 and len(found["by_place"]) == 4
    assert found["mean_log_prob"] < -0.01, "tokens that are all certain would show no difference"

    def one_far_off(decoded, verified):
        verified[2].log_probs[30] -= 0.001
        return compare(decoded, verified)

    compare = check_operators.compare
    monkeypatch.setattr(check_operators, "compare", one_far_off)
    assert check_operators.main(words) == 1
    assert (tmp_path / "check-operators.png").stat().st_size > 10_000
