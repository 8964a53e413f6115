# SPDX-License-Identifier: Apache-2.0
"""The commands of research, small: every method gains, and input that cannot be used gets one sentence."""

import functools
import json
import random
import sys

import commands
import pytest
import tiny_qwen3
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from research import __main__ as research
from research import models, papers
from research.papers import EXPERIMENTS
from sam_lab.recordings import parse_answer


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


@pytest.fixture
def recording(tmp_path):
    return write(tmp_path / "phrases.jsonl", kind(1))


@pytest.fixture
def other(tmp_path):
    return write(tmp_path / "other.jsonl", kind(2))


def compared(path, out, *words):
    """{(context, method): row}"""
    assert research.main(["compare", str(path), "--max-tokens", "600", "--json", str(out), *words]) == 0
    return {(row["context"], row["method"]): row for row in json.loads(out.read_text())}


def test_every_method_gains_on_recordings(recording, tmp_path):
    contexts = ["--context", "request", "sequential", "group", "corpus"]
    rows = compared(recording, tmp_path / "out", *contexts, "--earlier", "30")
    assert len(rows) == 4 * 2 + 3 * 2 + 1 and all(row["accepted"] > 0 for row in rows.values())
    assert rows["request", "rest"]["tokens_per_step"] > 1.5
    alone = compared(recording, tmp_path / "out", *contexts, "--earlier", "0", "--method", "sd-tree")
    assert rows["request", "sd-tree"]["tokens_per_step"] > alone["request", "sd-tree"]["tokens_per_step"]
    online, first = (alone[context, "sd-tree"]["tokens_per_step"] for context in ("sequential", "request"))
    assert online > first
    exact = compared(recording, tmp_path / "out", "--alpha", "1", "--method", "sd-tree", "--earlier", "30")
    assert exact["request", "sd-tree"]["tokens_per_step"] <= rows["request", "sd-tree"]["tokens_per_step"]


def test_what_cannot_be_compared_is_one_sentence(recording, target_folder, tmp_path, capsys, monkeypatch):
    refused = functools.partial(commands.refused, research.main, capsys)
    one = write(tmp_path / "one.jsonl", kind(1, prompts=1))
    for words, sentence in (
        (("compare", recording, "--earlier", "-5"), "argument --earlier: invalid non-negative number value"),
        (("compare", recording, "--method", "rest", "--context", "group"), "nothing to replay"),
        (("compare", one), "has too few prompts"),
        (("papers", "--data", one, recording), "has too few prompts"),
        (("papers", "--data", recording), "needs two recordings"),
        (("papers", "--only", "gsd"), "gsd needs --models DIR"),
        (("tree", "--model", target_folder, "--method", "gsd"), "gsd needs --draft-model DIR"),
        (("tree", "--model", tmp_path), "is no Hugging Face model folder"),
    ):
        assert sentence in refused(*words)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "rest needs numba, which is not installed here" in refused("compare", recording)


def test_the_papers_experiments_run(recording, other, tmp_path, capsys):
    out = tmp_path / "out.json"
    names = [name for name in EXPERIMENTS if name != "rest-times"]  # 10 million tokens
    call = ["papers", "--data", str(recording), str(other), "--max-tokens", "400", "--json", str(out), "--only", *names]
    assert research.main(call) == 0
    tables = json.loads(out.read_text())["tables"]
    assert list(tables) == names
    assert all({row["recording"] for row in rows} == {"phrases", "other"} for rows in tables.values())
    assert tables["sd-forms"][0]["SD-T: tokens a step"] > 1.5
    row = tables["rest-datastore"][0]
    assert row["own: tokens a step"] > 1.2 * row["generic: tokens a step"]
    assert capsys.readouterr().out.count("| phrases |") > 20


def test_a_global_tree_adapts_to_answers_of_another_kind(recording, other):
    """Frozen stays behind, online comes up to what was trained on as many of that kind."""
    known = [row["response_ids"] for row in kind(1, prompts=256, siblings=1)]
    new = [parse_answer(row, "") for row in kind(2, prompts=160, siblings=1)]
    rows = {row["the tree"]: row for row in papers.sd_shift(papers.Recording("new", new, [], known, 4000, 0))}
    assert rows["online"]["quarter 4"] > 1.5 * rows["frozen"]["quarter 4"]
    assert rows["online"]["quarter 4"] > 0.9 * rows["trained"]["quarter 4"]
    assert rows["trained"]["quarter 1"] > rows["online"]["quarter 1"]


def test_graphs_of_a_draft_model_are_measured(target, draft_model, prompts, monkeypatch):
    monkeypatch.setattr(papers, "PROMPTS", 2)
    monkeypatch.setattr(papers, "TOKENS", 16)
    rows = papers.gsd(models.Pair(target, draft_model, [], prompts[:6]), 0)
    assert len(rows) == 3 * 3 * 3 and all(row["equal texts"] == "2/2" for row in rows)
    wide = {row["method"]: row for row in rows if row["theta_prob, theta_sib"] == "0.05, 0.05"}
    assert wide["tsd"]["nodes"] > 3 * wide["ssd"]["nodes"] and wide["tsd"]["tokens a step"] > 1


def test_tree_command(target_folder, tmp_path):
    """Prompts from a file, a model by path, all methods that need no draft model."""
    words = {f"w{i}": i for i in range(tiny_qwen3.VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w63").save_pretrained(target_folder)
    prompts = tmp_path / "prompts.txt"
    rng = random.Random(0)
    prompts.write_text("".join(" ".join(f"w{rng.randrange(63)}" for _ in range(6)) + "\n" for _ in range(8)))
    out = tmp_path / "out.json"
    call = ["tree", "--model", str(target_folder), "--prompts", str(prompts), "--max-tokens", "48", "--json", str(out)]
    assert research.main([*call, "--batch", "2"]) == 0
    record = json.loads(out.read_text())
    assert [row["method"] for row in record["methods"]] == ["plain", "chain", "sd-linear", "sd-tree", "rest"]
    assert all(row["equal"] == row["of"] == 4 for row in record["methods"])
    assert all(row["accepted"] > 0 and row["speedup"] > 0 for row in record["methods"][1:])
