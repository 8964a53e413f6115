# SPDX-License-Identifier: Apache-2.0
"""Recordings from public files: what each line has, and what is said of a file that is another one."""

import gzip
import hashlib
import http.client
import io
import json

from sam_lab.__main__ import main
from sam_lab.evidence import rebuild

END = rebuild.SPECIAL["<|im_end|>"]
ANSWERS = [{"full_model_response": answer, "score": 0} for answer in ("2 \n", 20 * "so ")]
SUMS = {"name": "sums", "results": [{"question": "1+1", "completions": ANSWERS}]}
CHECKPOINT = {"metadata": {"model": "../models/inter_logic_qwen_3b_400"}, "categories": [{"datasets": [SUMS]}]}
BOTH = {
    "microsoft/CodeT": ("code", {"prompt": "def f():", "samples": ["\n return 1"]}),
    "open-thought/reasoning-gym-eval": ("checkpoints", CHECKPOINT),
}


def sources(tmp_path, monkeypatch, files):
    """Files at hand, {repository: (set, content)}, and no network; tokens are bytes."""
    listed = {}
    for name, (of, content) in files.items():
        path = tmp_path / "sources" / name / "answers.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        listed[name] = {"set": of, "commit": "c" * 40, "files": {path.name: sha256}, "licence": "MIT"}
    (tmp_path / "sources.json").write_text(json.dumps(listed))
    monkeypatch.setattr(rebuild, "SOURCES", tmp_path / "sources.json")
    monkeypatch.setattr(rebuild, "FOLDER", tmp_path)
    monkeypatch.setattr(rebuild, "_tokenizer", lambda ranks: encode)
    return ["rebuild", str(tmp_path / "out"), "--ranks", "none", "--sources", str(tmp_path / "sources")]


def encode(text):
    """A byte a token, but for the end of a message, which is one."""
    *parts, last = text.split("<|im_end|>")
    return [token for part in parts for token in [*part.encode(), END]] + list(last.encode())


def decode(tokens):
    return b"".join(b"<|im_end|>" if token == END else bytes([token]) for token in tokens)


def rows(path):
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def test_answers_have_their_prompt_and_epoch(tmp_path, monkeypatch):
    assert main(sources(tmp_path, monkeypatch, BOTH)) == 0
    (code,) = rows(tmp_path / "out" / "code.jsonl.gz")
    assert (decode(code["prompt_ids"]), decode(code["response_ids"])) == (b"def f():", b"\n return 1")
    assert (code["prompt_id"], code["model"], "epoch" in code) == ("humaneval/0", "codegen-16B-mono", False)
    answer, loop = rows(tmp_path / "out" / "checkpoints.jsonl.gz")
    assert answer["epoch"] == 400
    assert decode(answer["response_ids"]) == b"2 <|im_end|>"
    assert (answer["tail_rep"], loop["tail_rep"]) == (1, 20)


def test_a_file_that_is_another_one_is_named_and_the_other_sets_are_written(tmp_path, monkeypatch, capsys):
    arguments = sources(tmp_path, monkeypatch, BOTH)
    wrong = tmp_path / "sources" / "microsoft" / "CodeT" / "answers.json"
    wrong.write_text("[]")
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert f"MISSING: {wrong} has another SHA-256" in said and "code lacks a source" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoints.jsonl.gz"]


class Cut(io.BytesIO):
    """A download that ends as http.client's do."""

    def read(self):
        raise http.client.IncompleteRead(b"")


def test_a_download_that_is_cut_keeps_the_set_and_the_files_that_came(tmp_path, monkeypatch, capsys):
    names = list(BOTH)
    arguments = sources(tmp_path, monkeypatch, {name: ("both", BOTH[name][1]) for name in names})[:-2]
    cut, asked = True, []

    def urlopen(url, timeout):
        name = next(name for name in names if name in url)
        asked.append(name)
        answer = io.BytesIO((tmp_path / "sources" / name / "answers.json").read_bytes())
        return Cut() if cut and name == names[0] else answer

    monkeypatch.setattr(rebuild.urllib.request, "urlopen", urlopen)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "both.jsonl.gz").write_text("the recording of an earlier call")
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert "cannot be downloaded: IncompleteRead" in said and "both lacks a source and was not written" in said
    assert (tmp_path / "out" / "both.jsonl.gz").read_text() == "the recording of an earlier call"
    cut = False
    assert main(arguments) == 0
    assert asked == [*names, names[0]]
    assert len(rows(tmp_path / "out" / "both.jsonl.gz")) == 3
