# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_core`: what it prints and writes, and that it refuses bad input in one sentence."""

import json
import subprocess
import sys
from functools import partial

import commands
import pytest
from sam_core.__main__ import main
from sam_core.tokenizer import fingerprint

import sam_core

refused = partial(commands.refused, main)


def command(*words):
    words = [sys.executable, "-m", "sam_core", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(tmp_path):
    return write(
        tmp_path / "texts.jsonl",
        [{"prompt_ids": [7], "response_ids": [*range(1000, 1100)]}, {"prompt_ids": [7], "response_ids": [5] * 60}],
    )


def test_corpus_is_built_and_inspected(texts, tmp_path, capsys):
    made = command("build-corpus", texts, "-o", tmp_path / "made")
    assert made.returncode == 0 and "tokens" in made.stdout, made.stderr
    assert main(["inspect", str(tmp_path / "made")]) == 0
    assert capsys.readouterr().out == made.stdout
    assert main(["inspect", "--json", str(tmp_path / "made")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["texts"], found["tokens"], found["largest_token"]) == (2, 160, 1099)


def test_corpus_takes_the_named_key_and_tokenizer(texts, tmp_path, capsys):
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text('{"model": {"vocab": {"a": 0}}}')
    words = ["--key", "prompt_ids", "--tokenizer", str(tokenizer), "-o", str(tmp_path / "made")]
    assert main(["build-corpus", str(texts), *words]) == 0
    out = capsys.readouterr().out
    assert f"tokenizer        {fingerprint(tokenizer)}\n" in out
    assert main(["inspect", "--json", str(tmp_path / "made")]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 2


def test_bad_corpus_input_is_refused(texts, tmp_path, capsys):
    assert "no.jsonl: No such file" in refused(capsys, "build-corpus", tmp_path / "no.jsonl", "-o", tmp_path / "made")
    assert "token_ids" in refused(capsys, "build-corpus", write(tmp_path / "x.jsonl", [{}]), "-o", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_file_of_neither_kind_is_refused(texts, capsys):
    sentence = refused(capsys, "inspect", texts)
    assert sentence.startswith(f"error: {texts} is neither a corpus (") and ") nor a saved pool (" in sentence
    assert "No such file" in refused(capsys, "inspect", texts.with_name("no"))


def test_saved_pool_is_inspected(tmp_path, capsys):
    pool = sam_core.Pool()
    slot = pool.open([1, 2, 3])
    pool.append(slot, [4, 5])
    pool.close(slot)
    pool.save(str(tmp_path / "pool"))
    assert main(["inspect", "--json", str(tmp_path / "pool")]) == 0
    described = sam_core.Pool.describe(str(tmp_path / "pool"))
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(described))
