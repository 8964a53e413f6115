# SPDX-License-Identifier: Apache-2.0
"""The shipped tiny model is complete, and its data match its task."""

import json
import re
import shutil

import pandas

from llm_rl.qwen3 import tiny_model
from llm_rl.rewards import is_right


def test_the_model_that_is_shipped_is_whole():
    assert tiny_model.check() is None
    record = json.loads((tiny_model.FOLDER / tiny_model.RECORD).read_text())
    files = {path.name for path in tiny_model.FOLDER.iterdir()} - {tiny_model.RECORD}
    assert set(record["files"]) == files
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


def test_data_are_sums_in_the_schema_of_dapo_math():
    files = [pandas.read_parquet(tiny_model.FOLDER / f"{split}.parquet") for split in ("train", "test")]
    rows = [row for file in files for row in file.to_dict("records")]
    for row in rows:
        (message,) = row["prompt"]
        (terms,) = re.findall(r"What is ([\d +]+)\?", message["content"])
        truth = str(sum(map(int, terms.split(" + "))))
        assert row["reward_model"] == {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"}
        assert is_right(row["data_source"], f"Answer: {truth}", truth) and message["role"] == "user"
    assert len({row["prompt"][0]["content"] for row in rows}) == len(rows), "no prompt twice, none in both files"
