# SPDX-License-Identifier: Apache-2.0
"""Checks of which tokenizers count as the same."""

import json

import pytest
from sam_core.tokenizer import fingerprint

BPE = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}}, "added_tokens": [{"id": 3, "content": "<|end|>"}]}


def of(tmp_path, content, name="tokenizer.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return fingerprint(path)


def test_only_the_ids_of_tokens_count(tmp_path):
    mine = of(tmp_path, BPE)
    assert len(mine) == 16 and mine == fingerprint(tmp_path)
    other_order = {"version": "1.0", "truncation": None, "added_tokens": BPE["added_tokens"]}
    assert of(tmp_path, other_order | {"model": {"vocab": {"ab": 2, "b": 1, "a": 0}, "merges": []}}) == mine
    for change in ({"model": {"vocab": {"a": 1, "b": 0, "ab": 2}}}, {"added_tokens": []}, {"added_tokens": None}):
        assert of(tmp_path, BPE | change) != mine


def test_every_kind_of_file(tmp_path):
    pieces = [["a", -1.5], ["b", -2.0], ["ab", -3.0]]
    same = {of(tmp_path, {"model": {"type": "Unigram", "vocab": pieces}}), of(tmp_path, {"a": 0, "b": 1, "ab": 2})}
    assert len(same) == 1
    (tmp_path / "tokenizer.json").unlink()
    assert fingerprint(tmp_path) is None and fingerprint("Qwen/Qwen3-8B") is None
    texts = {of(tmp_path, "[PAD]", "vocab.txt"), of(tmp_path, "x", "tokenizer.model")}
    assert len(texts) == 2 and fingerprint(tmp_path) in texts


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"vocab": [1]}}', "[" * 100_000])
def test_a_file_that_is_none(tmp_path, content):
    with pytest.raises(ValueError) as error:
        of(tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path}/tokenizer.json is no tokenizer (")
    assert str(error.value).endswith("): name the file that comes with the model") and "\n" not in str(error.value)
