# SPDX-License-Identifier: Apache-2.0
"""The tiny model that is shipped, its task, data and tokenizer, and three steps of the training that made it."""

import json
import random
import re
import shutil
from unittest import mock

import pytest
import torch

from llm_rl.qwen3 import sums, tiny_measure, tiny_model


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model.make_tokenizer(0)


ANSWERS = {"Answer: {}": True, "answer : {}\n": True, "Answer: 1\nAnswer: {}": True, "Answer: {}\nAnswer: 1": False}
ANSWERS |= {"The sum is {}.": False, "Answer: {}0": False, "Answer: {}\n" + "." * 300: False}


def test_scoring_takes_the_last_answer_line_as_verl_does():
    from verl.utils.reward_score import math_dapo as scorer

    rng = random.Random(5)
    for terms in sums.problems(50, rng):
        truth = str(sum(terms))
        for form, right in ANSWERS.items():
            assert sums.correct(form.format(truth), terms) is right, form
        for answer in (sums.solution(terms, rng), *(form.format(truth) for form in ANSWERS)):
            assert scorer.compute_score(answer, truth)["acc"] == sums.correct(answer, terms)


def test_tokenizer_reads_back_what_it_wrote(tokenizer):
    terms = (12, 34, 56)
    ids = tiny_measure.encode_prompt(tokenizer, terms)
    text = tokenizer.decode(ids)
    assert text == f"<|im_start|>user\n{sums.question(terms)}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.eos_token_id in ids
    assert len(tokenizer(" 1234")["input_ids"]) == 4, "digits stand alone"


def test_the_model_that_is_shipped_is_whole():
    assert tiny_model.check() is None
    record = json.loads((tiny_model.FOLDER / tiny_model.RECORD).read_text())
    files = {path.name for path in tiny_model.FOLDER.iterdir()} - {tiny_model.RECORD}
    assert set(record["files"]) == files
    assert record["steps"] == tiny_model.STEPS
    measured = record["measured"]
    assert measured["accuracy"] > 0.5 and measured["mixed_prompts"] > 0.5
    assert measured["tail_share"] > 0.03 and measured["response_length"]["p99"] > 500


def test_a_damaged_model_is_named(tmp_path):
    assert "has no readable provenance.json: restore the folder" in tiny_model.check(tmp_path)
    folder = shutil.copytree(tiny_model.FOLDER, tmp_path / "tiny")
    assert tiny_model.check(folder) is None
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    damaged = f"{folder / 'model.safetensors'} is not the file that provenance.json records"
    assert tiny_model.check(folder).startswith(damaged)
    (folder / "config.json").unlink()
    assert "config.json is not the file" in tiny_model.check(folder)


def test_builds_a_model_folder(tokenizer, tmp_path, monkeypatch, capsys):
    """By three training steps and a measurement of four short answers."""
    monkeypatch.setattr(tiny_model, "STEPS", 3)
    for name, value in (("PROMPTS", 2), ("SAMPLES", 2), ("MAX_RESPONSE", 128)):
        monkeypatch.setattr(tiny_measure, name, value)
    out = tmp_path / "made" / "tiny"
    tiny_model.main(["--out", str(out), "--seed", "1"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("accuracy ")
    assert sorted(path.name for path in out.parent.iterdir()) == ["tiny"], "no temporary folder is left"
    assert tiny_model.check(out) is None

    from transformers import AutoModelForCausalLM, AutoTokenizer

    for folder in (out, tiny_model.FOLDER):
        model, loaded = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert (type(model).__name__, model.dtype) == ("Qwen3ForCausalLM", torch.float32)
        assert model.generation_config.eos_token_id == loaded.eos_token_id
    shipped, made = (tiny_measure.encode_prompt(one, (12, 34)) for one in (loaded, tokenizer))
    assert shipped == made, "what is shipped is what the command makes"
    made = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(SystemExit, match="exists already: name a new or empty folder"):
        tiny_model.main(["--out", str(out)])
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == made


def test_data_has_the_schema_of_dapo_math_and_is_reproducible(tmp_path):
    import pandas

    tiny_model.write_data(tmp_path, 0)
    train, test = (pandas.read_parquet(tmp_path / f"{split}.parquet") for split in ("train", "test"))
    assert (len(train), len(test)) == (tiny_model.TRAIN_ROWS, tiny_model.TEST_ROWS)
    assert list(train.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    rows = [*train.to_dict("records"), *test.to_dict("records")]
    for index, row in enumerate(rows):
        assert row["data_source"] == "math_dapo" and row["ability"] == "MATH"
        (message,) = row["prompt"]
        assert message["role"] == "user"
        problem = message["content"].removeprefix(sums.BEFORE).removesuffix(sums.AFTER)
        truth = sum(map(int, re.findall(r"\d+", problem)))
        assert row["reward_model"] == {"ground_truth": str(truth), "style": "rule-lighteval/MATH_v2"}
        assert row["extra_info"] == {"index": str(index)}
    assert len({row["prompt"][0]["content"] for row in rows}) == len(rows), "no prompt twice, none in both files"
    shipped = [pandas.read_parquet(tiny_model.FOLDER / f"{split}.parquet").to_json() for split in ("train", "test")]
    assert shipped == [train.to_json(), test.to_json()]


def test_an_interrupted_build_leaves_nothing(tmp_path):
    with mock.patch.object(tiny_model, "build", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        tiny_model.main(["--out", str(tmp_path / "tiny")])
    assert list(tmp_path.iterdir()) == []
