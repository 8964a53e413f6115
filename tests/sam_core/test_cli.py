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


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(tmp_path):
    answers = [*range(1000, 1100)], [5] * 60
    return write(tmp_path / "texts.jsonl", [{"prompt_ids": [7], "response_ids": answer} for answer in answers])


def test_corpus_is_built_and_inspected(texts, tmp_path, capsys):
    tokenizer, out = tmp_path / "tokenizer.json", tmp_path / "made"
    tokenizer.write_text('{"a": 0}')
    words = [sys.executable, "-m", "sam_core", "build-corpus", texts, "--tokenizer", tokenizer, "-o", out]
    made = subprocess.run(words, capture_output=True, text=True)
    assert made.returncode == 0 and f"tokenizer        {fingerprint(tokenizer)}\n" in made.stdout, made.stderr
    assert main(["inspect", str(out)]) == 0
    assert capsys.readouterr().out == made.stdout
    for more, counts in (([], (2, 160, 1099)), (["--key", "prompt_ids"], (2, 2, 7))):
        assert main(["build-corpus", str(texts), *more, "-o", str(out)]) == 0
        capsys.readouterr()
        assert main(["inspect", "--json", str(out)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["texts"], found["tokens"], found["largest_token"]) == counts


def test_bad_input_is_refused(texts, tmp_path, capsys):
    for source, said in ((tmp_path / "no.jsonl", "no.jsonl: No such"), (write(tmp_path / "x", [{}]), "token_ids")):
        assert said in refused(capsys, "build-corpus", source, "-o", tmp_path / "made")
    assert not (tmp_path / "made").exists()
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
