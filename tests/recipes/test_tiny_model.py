# SPDX-License-Identifier: Apache-2.0
"""The tiny model that is shipped, its task, data and tokenizer, and a short run of the training that made it."""

import json
import random
import shutil

import pytest
import torch

from llm_rl.qwen3 import sums, tiny_measure, tiny_model


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model.make_tokenizer(0)


@pytest.fixture
def quick(monkeypatch):
    """Three training steps and a measurement of four short answers."""
    monkeypatch.setattr(tiny_model, "STEPS", 3)
    monkeypatch.setattr(tiny_measure, "PROMPTS", 2)
    monkeypatch.setattr(tiny_measure, "SAMPLES", 2)
    monkeypatch.setattr(tiny_measure, "MAX_RESPONSE", 128)


def test_problems_are_different_and_mostly_short():
    problems = sums.problems(2000, sums.rng_for(0, "test"))
    assert len(set(problems)) == 2000
    assert all(10 <= term <= 99 for terms in problems for term in terms)
    lengths = [len(terms) for terms in problems]
    assert set(lengths) == {*sums.SHORT_TERMS, *sums.LONG_TERMS}
    assert 0.01 < sum(n >= min(sums.LONG_TERMS) for n in lengths) / 2000 < 0.06


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
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer.eos_token_id in ids
    assert len(tokenizer) <= 1024
    assert len(tokenizer(" 1234")["input_ids"]) == 4, "digits stand alone"


@pytest.mark.slow
def test_a_short_training_learns(tokenizer):
    """A loss near that of guessing among 400 tokens falls to where most of a text is known."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    losses = tiny_model.train(tiny_model.make_model(tokenizer), tokenizer, 0, 60)
    assert len(losses) == 60 and losses[0] > 5
    assert sum(losses[-10:]) / 10 < 2.5


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


def test_builds_a_model_folder(tmp_path, quick, capsys):
    out = tmp_path / "made" / "tiny"
    tiny_model.main(["--out", str(out), "--seed", "1"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("accuracy ")
    assert sorted(path.name for path in out.parent.iterdir()) == ["tiny"], "no temporary folder is left"
    assert tiny_model.check(out) is None

    from transformers import AutoModelForCausalLM, AutoTokenizer

    for folder in (out, tiny_model.FOLDER):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert type(model).__name__ == "Qwen3ForCausalLM"
        assert str(model.dtype) == "torch.float32"
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tiny_measure.encode_prompt(tokenizer, (12, 34)) == tiny_measure.encode_prompt(
        tiny_model.make_tokenizer(0), (12, 34)
    ), "what is shipped is what the command makes"
    made = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(SystemExit, match="is there already; name a new or empty folder"):
        tiny_model.main(["--out", str(out)])
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == made


def test_data_has_the_schema_of_dapo_math_and_is_reproducible(tmp_path):
    import pandas

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tiny_model.write_data(tmp_path / name, 0)
    train, test = (pandas.read_parquet(tmp_path / "a" / f"{split}.parquet") for split in ("train", "test"))
    assert (len(train), len(test)) == (tiny_model.TRAIN_ROWS, tiny_model.TEST_ROWS)
    assert list(train.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    rows = [*train.to_dict("records"), *test.to_dict("records")]
    for index, row in enumerate(rows):
        assert row["data_source"] == "math_dapo" and row["ability"] == "MATH"
        (message,) = row["prompt"]
        assert message["role"] == "user"
        problem = message["content"].removeprefix(sums.BEFORE).removesuffix(sums.AFTER)
        terms = problem.removeprefix("What is ").removesuffix("?").split(" + ")
        truth = str(sum(map(int, terms)))
        assert row["reward_model"] == {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"}
        assert row["extra_info"] == {"index": str(index)}
    assert len({row["prompt"][0]["content"] for row in rows}) == len(rows), "no prompt twice, none in both files"
    shipped = [pandas.read_parquet(tiny_model.FOLDER / f"{split}.parquet").to_json() for split in ("train", "test")]
    assert shipped == [train.to_json(), test.to_json()]
    for split in ("train", "test"):
        first, second = (pandas.read_parquet(tmp_path / name / f"{split}.parquet") for name in ("a", "b"))
        assert first.to_json() == second.to_json()


def test_an_interrupted_build_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny_model.main(["--out", str(tmp_path / "tiny")])
    assert list(tmp_path.iterdir()) == []
