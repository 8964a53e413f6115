# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_core`: what it prints and writes, and that it refuses bad input in one sentence."""

import json
import os
import stat
import subprocess
import sys
from functools import partial

import commands
import pytest
from recording import write
from sam_core.__main__ import main
from sam_core.files import replacing
from sam_core.options import Options
from sam_core.tokenizer import fingerprint

import sam_core

refused = partial(commands.refused, main)


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
    sentence = f"error: {texts} is neither a corpus nor a saved pool: name a file that this package wrote"
    assert refused(capsys, "inspect", texts) == sentence
    assert "No such file" in refused(capsys, "inspect", texts.with_name("no"))
    (tmp_path / "x.npy").write_text("no array")
    sentence = f"error: {tmp_path}/x.npy is no .npy array of token ids: write one with numpy.save"
    assert refused(capsys, "build-corpus", tmp_path / "x.npy", "-o", tmp_path / "made") == sentence


def test_an_output_that_is_an_input_is_refused(texts, tmp_path, capsys):
    (tmp_path / "hard").hardlink_to(texts)
    (tmp_path / "soft").symlink_to(texts)
    tokenizer, before = tmp_path / "tokenizer.json", texts.read_bytes()
    tokenizer.write_text('{"a": 0}')
    for out in (texts, tmp_path / "hard", tmp_path / "soft", tmp_path / ".." / tmp_path.name / texts.name, tokenizer):
        sentence = refused(capsys, "build-corpus", texts, "-o", out, "--tokenizer", tmp_path)
        assert sentence == f"error: {out} is also an input or another output, and would be lost: name another file"
    assert texts.read_bytes() == before and tokenizer.read_text() == '{"a": 0}'


def test_outputs_that_are_no_new_files(texts, tmp_path, capsys):
    made, link = tmp_path / "made", tmp_path / "link"
    assert main(["build-corpus", str(texts), "-o", str(made)]) == 0
    before = made.read_bytes()
    full = tmp_path / "full"
    full.symlink_to("/dev/full")  # a wrong rename would only cost the link
    for out, said in (
        (full, f"{full} is no regular file: name another file"),
        (tmp_path, f"{tmp_path}: Is a directory"),
    ):
        assert refused(capsys, "build-corpus", texts, "-o", out) == f"error: {said}"
    assert full.is_symlink()
    made.write_text("old")
    made.chmod(0o640)
    link.symlink_to("made")
    words = [sys.executable, "-m", "sam_core", "build-corpus", texts, "-o"]
    subprocess.run([*words, link], check=True, capture_output=True)
    assert made.read_bytes() == before and link.is_symlink() and stat.S_IMODE(made.stat().st_mode) == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "made", "link", "full"}
    with open("/dev/full", "wb") as stdout:
        buffered = {"stdout": stdout, "stderr": subprocess.PIPE, "env": os.environ | {"PYTHONUNBUFFERED": ""}}
        done = subprocess.run([*words[:3], "inspect", made], **buffered, text=True)
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")
    for descriptor in (1, 2):
        closed = partial(os.close, descriptor)
        assert subprocess.run([*words, made], preexec_fn=closed, capture_output=True).returncode == 0
    with pytest.raises(ChildProcessError) as error, replacing(made):
        os.waitpid(os.getpid(), 0)  # like any OSError that names no file
    assert error.value.filename is None and made.read_bytes() == before


def test_a_full_disk_and_a_read_only_one(tmp_path, own_mounts):
    write(tmp_path / "texts.jsonl", [{"token_ids": [*range(2000)]}])
    script = """
mount -t tmpfs -o size=8k,$2 none $1 && "$3" -m sam_core build-corpus texts.jsonl -o $1/made
echo $? $(ls -A $1)
"""
    for how, said in (("rw", "No space left on device"), ("ro", "Read-only file system")):
        (tmp_path / how).mkdir()
        words = [*own_mounts, "sh", "-c", script, "sh", how, how, sys.executable]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("2\n", f"error: {how}/made: {said}\n")


def test_a_damaged_corpus_is_refused(texts, tmp_path, capsys):
    made = tmp_path / "made"
    assert main(["build-corpus", str(texts), "-o", str(made)]) == 0
    with open(made, "r+b") as file:
        file.seek(200)
        file.write(b"damaged.")
    said = f"{made} is a corpus with a damaged body: copy or build it again"
    assert refused(capsys, "inspect", made) == f"error: {said}"
    with pytest.raises(ValueError, match=said):
        Options(corpus=str(made))


def test_saved_pool_is_inspected(tmp_path, capsys):
    pool = sam_core.Pool()
    slot = pool.open([1, 2, 3])
    pool.append(slot, [4, 5])
    pool.close(slot)
    pool.save(str(tmp_path / "pool"))
    assert main(["inspect", "--json", str(tmp_path / "pool")]) == 0
    described = sam_core.Pool.describe(str(tmp_path / "pool"))
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(described))
