# SPDX-License-Identifier: Apache-2.0
"""Methods compared on recordings, adaptation to other answers, and recordings from what runs leave."""

import ast
import functools
import importlib.util
import json
import os
import random
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
import tiny_qwen3

from sam_lab import __main__ as lab
from sam_lab.cli import LabError
from sam_lab.export import from_dumps
from sam_lab.methods.pool import Frozen
from sam_lab.recordings import parse_answer, read_answers
from sam_lab.replay import replay
from sam_lab.score import shift


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def kind(seed, prompts=40, siblings=2, size=60):
    """Answers made of a few phrases of their kind, different for each prompt."""
    rng = random.Random(seed)
    phrases = [[rng.randrange(1000 * seed, 1000 * seed + 50) for _ in range(8)] for _ in range(12)]
    rows = []
    for prompt in range(prompts):
        for _ in range(siblings):
            answer = [token for _ in range(size // 8) for token in rng.choice(phrases)]
            rows.append({"prompt_ids": [], "response_ids": answer, "prompt_id": f"{seed}/{prompt}"})
    return rows


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "phrases.jsonl", kind(1))


def test_every_method_gains_and_the_run_can_be_resumed(recording, tmp_path, capsys):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    contexts = ["--context", "request", "sequential", "group", "corpus"]
    call = ["compare", str(recording), *contexts, "--alpha", "4", "1", "--earlier", "0", "30", "--json", str(out)]
    call += ["--max-tokens", "600", "--method", "chain", "blend", "sd-linear", "sd-tree"]
    assert lab.main([*call, "--picture", str(picture)]) == 0
    results = json.loads(out.read_text())
    assert len(results) == 4 * 2 + 3 * 2 * 2 * 2
    assert all(result["accepted"] > 0 for result in results)
    assert picture.stat().st_size > 10_000
    first = {(r["context"], r["method"], r.get("alpha"), r.get("earlier")): r["tokens_per_step"] for r in results}
    assert first["request", "sd-tree", 4, 30] > first["request", "sd-tree", 4, 0]
    assert first["request", "sd-tree", 4, 30] >= first["request", "sd-tree", 1, 30]
    assert first["sequential", "sd-tree", 4, 0] > first["request", "sd-tree", 4, 0], "nothing was learnt online"
    printed = capsys.readouterr().out
    written = out.stat().st_mtime_ns
    assert lab.main([*call, "--resume"]) == 0
    assert out.stat().st_mtime_ns == written and capsys.readouterr().out == printed


def test_earlier_epochs_are_known_and_sources_are_told(tmp_path, capsys):
    rows = [row | {"epoch": epoch} for epoch in (1, 2) for row in kind(3, prompts=12)]
    path, out = write(tmp_path / "epochs.jsonl", rows), tmp_path / "out.json"
    call = ["compare", str(path), "--max-tokens", "600", "--json", str(out)]
    assert lab.main([*call, "--method", "sd-tree", "--earlier", "0", "--context", "history", "nohistory"]) == 0
    known, unknown = json.loads(out.read_text())
    assert known["tokens_per_step"] > 1.5 * unknown["tokens_per_step"]
    accepted = {name: counts["accepted_tokens"] for name, counts in known["by_source"].items()}
    assert f"group {accepted['group'] / sum(accepted.values()):.0%}" in capsys.readouterr().out
    assert lab.main([*call, "--method", "rest", "--context", "group"]) == 2
    assert "nothing to replay" in capsys.readouterr().err


def test_what_cannot_be_replayed_is_one_sentence(recording, tmp_path, capsys, monkeypatch):
    refused = functools.partial(commands.refused, lab.main, capsys)
    sentence = "argument --earlier: invalid non-negative number value: '-5'"
    assert sentence in refused("compare", recording, "--earlier", "30", "-5")
    assert "argument --seed: invalid non-negative number value: '-1'" in refused("compare", recording, "--seed", "-1")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numba", None)
        assert "rest needs numba, which is not installed here" in refused("compare", recording)
    one = write(tmp_path / "one.jsonl", kind(1, prompts=1, siblings=1))
    assert "have one answer or none" in refused("retrieval", one)


def test_rest_is_replayed(recording, tmp_path):
    out = tmp_path / "out.json"
    call = ["compare", str(recording), "--method", "rest", "--max-tokens", "600", "--json", str(out), "--m", "2", "10"]
    assert lab.main(call) == 0
    two, ten = json.loads(out.read_text())
    assert 1 < two["tokens_per_step"] <= 3 and two["tokens_per_step"] < ten["tokens_per_step"]
    assert sum(ten["matches"]) == ten["steps"] and sum(ten["accepted_by_match"]) > 0


def test_a_global_tree_of_256_examples_adapts(tmp_path):
    """Answers of another kind: frozen stays behind, online comes up to what was trained on as many of that kind."""
    known = [row["response_ids"] for row in kind(1, prompts=256, siblings=1)]
    new = read_answers(write(tmp_path / "new.jsonl", kind(2, prompts=80, siblings=1)))
    trained = [row["response_ids"] for row in kind(2, prompts=40, siblings=1)]
    measured = shift.measure(known, trained, new, 40, 64, "both")
    arms = {name: [row["tokens_per_step"] for row in rows] for name, rows in measured.items()}
    assert arms["online"][1] > 1.5 * arms["frozen"][1]
    assert arms["online"][1] > 0.9 * arms["trained"][1]
    assert arms["trained"][0] > arms["online"][0]


def test_trained_knows_as_many_answers_as_there_are_examples(tmp_path):
    path, out = write(tmp_path / "a.jsonl", kind(1, prompts=24, siblings=1)), tmp_path / "out.json"
    words = ["--known", path, "--new", path, "--examples", 6, "--requests", 4, "--chunk", 2, "--json", out]
    assert lab.main(["shift", *map(str, words)]) == 0
    written = json.loads(out.read_text())
    assert (written["examples"], written["trained"], len(written["arms"]["trained"])) == (6, 6, 2)


def test_256_examples_are_enough_to_gain():
    rows = kind(1, prompts=300, siblings=1)
    held = [parse_answer(row, "") for row in rows[256:]]
    drafter = Frozen([row["response_ids"] for row in rows[:256]], "global")
    figures = replay(drafter, [[(answer, True)] for answer in held], "request", 64, True)
    assert figures["tokens_per_step"] > 2 and figures["accepted"] > 0
    assert set(figures["by_source"]) and figures["by_source"]["request"]["drafts"] == 0


def test_answers_of_a_run_become_a_recording(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out.jsonl"
    run.mkdir()
    write(run / "answers-1.jsonl", [[2, 0, 1, "hash", [3, 4], [0.0, 0.0]], [1, 0, 0, "hash", [5], None]])
    assert lab.main(["export", str(run), "-o", str(out)]) == 0
    first, second = read_answers(out)
    assert (list(first.response_ids), first.epoch, first.prompt_id) == ([5], 1, "hash")
    assert (list(second.response_ids), second.epoch, second.group) == ([3, 4], 2, "2/0")


def verl_writer():
    """The function by which the installed verl writes a dump, without importing verl, which takes half a minute."""
    (folder,) = importlib.util.find_spec("verl").submodule_search_locations
    module = ast.parse((Path(folder) / "trainer" / "ppo" / "ray_trainer.py").read_text())
    (writer,) = (node for node in ast.walk(module) if getattr(node, "name", "") == "_write_generations")
    writer.decorator_list = []
    names = {"os": os, "json": json, "np": np}
    exec(compile(ast.Module([writer], []), "ray_trainer.py", "exec"), names)
    return names["_write_generations"]


def save_tokenizer(words, unknown, folder, **special):
    """A tokenizer of words; their ids are their places."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def dump(folder):
    write(folder / "1.jsonl", [{"input": "a"}])


def test_rollout_dumps_become_a_recording(tmp_path):
    save_tokenizer(["a", "b", "?"], "?", tmp_path / "model")
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
        (dump, ("--tokenizer", "/absent"), "/absent has no tokenizer: "),
        (
            lambda folder: write(folder / "answers-0.jsonl", []),
            ("--tokenizer", "t"),
            "token ids: leave --tokenizer out",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(make, words, sentence, tmp_path, capsys):
    (tmp_path / "from").mkdir()
    make(tmp_path / "from")
    assert lab.main(["export", str(tmp_path / "from"), "-o", str(tmp_path / "out"), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dump_of_numbers_is_none(tmp_path):
    path = write(tmp_path / "1.jsonl", [{"input": 5, "output": "a", "step": 1}])
    with pytest.raises(LabError, match="line 1, is no row of a rollout dump"):
        list(from_dumps([path], None))


def test_tree_command(target_folder, tmp_path, capsys):
    """Prompts from a file, a model by path, all methods that need no draft model; and what it refuses."""
    save_tokenizer([f"w{i}" for i in range(tiny_qwen3.VOCAB)], "w0", target_folder, eos_token="w63")
    prompts = tmp_path / "prompts.txt"
    rng = random.Random(0)
    prompts.write_text("".join(" ".join(f"w{rng.randrange(63)}" for _ in range(6)) + "\n" for _ in range(8)))
    out = tmp_path / "out.json"
    call = ["tree", "--model", str(target_folder), "--prompts", str(prompts), "--max-tokens", "48", "--json", str(out)]
    assert lab.main([*call, "--batch", "2"]) == 0
    record = json.loads(out.read_text())
    assert [row["method"] for row in record["methods"]] == ["plain", "chain", "sd-linear", "sd-tree", "rest"]
    assert all(row["equal"] == row["of"] == 4 for row in record["methods"])
    assert all(row["accepted"] > 0 and row["speedup"] > 0 for row in record["methods"][1:])
    assert lab.main([*call, "--method", "gsd"]) == 2
    assert "gsd needs --draft-model DIR" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        lab.main([*call, "--method", "rest", "--n-max", "-3"])
    assert "argument --n-max: invalid positive number value: '-3'" in capsys.readouterr().err
    assert lab.main(["tree", "--model", str(tmp_path)]) == 2
    assert "is no Hugging Face model folder" in capsys.readouterr().err
