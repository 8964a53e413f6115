# SPDX-License-Identifier: Apache-2.0
"""Recordings are exported from the files that runs leave."""

import ast
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from recording import write
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sam_lab import __main__ as lab
from sam_lab.recordings import read_answers


def test_answers_of_a_run_become_a_recording(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out.jsonl"
    run.mkdir()
    write(run / "answers-1.jsonl", [[2, 0, 1, "hash", [3, 4], [0.0, 0.0]], [1, 0, 0, "hash", [5], None]])
    assert lab.main(["export", str(run), "-o", str(out)]) == 0
    first, second = read_answers(out)
    assert (list(first.response_ids), first.epoch, first.prompt_id) == ([5], 1, "hash")
    assert (list(second.response_ids), second.epoch, second.group) == ([3, 4], 2, "2/0")


def test_an_export_does_not_replace_its_source(tmp_path, capsys):
    source = write(tmp_path / "answers-1.jsonl", [[2, 0, 1, "hash", [3, 4], [0.0, 0.0]]])
    before = source.read_bytes()
    assert lab.main(["export", str(tmp_path), "-o", str(source)]) == 2
    assert "is also an input or another output" in capsys.readouterr().err and source.read_bytes() == before


def verl_writer():
    """The installed verl's function that writes a dump, loaded without importing verl, which takes half a minute."""
    (folder,) = importlib.util.find_spec("verl").submodule_search_locations
    module = ast.parse((Path(folder) / "trainer" / "ppo" / "ray_trainer.py").read_text())
    (writer,) = (node for node in ast.walk(module) if getattr(node, "name", "") == "_write_generations")
    writer.decorator_list = []
    names = {"os": os, "json": json, "np": np}
    exec(compile(ast.Module([writer], []), "ray_trainer.py", "exec"), names)
    return names["_write_generations"]


def dump(folder):
    write(folder / "1.jsonl", [{"input": "a"}])


def test_rollout_dumps_become_a_recording(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    for step in (10, 9):
        verl_writer()(["a b", "a b"], ["b b", "a"], [None] * 2, [0.0, 1.0], {}, str(tmp_path / "dump"), step)
    out = tmp_path / "out.jsonl"
    assert lab.main(["export", str(tmp_path / "dump"), "-o", str(out), "--tokenizer", str(tmp_path / "model")]) == 0
    answers = read_answers(out)
    assert [list(a.response_ids) for a in answers] == [[1, 1], [0]] * 2
    assert [a.epoch for a in answers] == [9, 9, 10, 10]
    assert {a.prompt_id for a in answers} == {"a b"} and list(answers[0].prompt_ids) == [0, 1]


@pytest.mark.parametrize(
    ("make", "words", "sentence"),
    [
        (lambda folder: None, (), "has neither answers-"),
        (dump, (), "holds texts: name the folder of the model"),
        (dump, ("--tokenizer", "/absent"), "there is no folder /absent: "),
        (lambda folder: write(folder / "answers-0.jsonl", []), ("--tokenizer", "t"), "ids: leave --tokenizer out"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(make, words, sentence, tmp_path, capsys):
    (tmp_path / "from").mkdir()
    make(tmp_path / "from")
    assert lab.main(["export", str(tmp_path / "from"), "-o", str(tmp_path / "out"), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
