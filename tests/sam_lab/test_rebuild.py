# SPDX-License-Identifier: Apache-2.0
"""Recordings from public files: what each line has, and what is said of a file that is another one."""

import gzip
import hashlib
import http.client
import io
import json

from sam_lab.__main__ import main
from sam_lab.evidence import rebuild

SAID = [("system", "policy"), ("user", "hello"), ("assistant", "who?"), ("user", "me"), ("assistant", None)]
SAID += [("tool", "found"), ("assistant", "done"), ("user", "bye")]
TRIAL = {"task_id": 7, "trial": 1, "reward": 1.0, "traj": [{"role": role, "content": text} for role, text in SAID]}
TRIAL["traj"][4]["tool_calls"] = [{"function": {"name": "find", "arguments": '{"id":"x"}'}}]
END = rebuild.SPECIAL["<|im_end|>"]
ANSWERS = [{"full_model_response": answer, "score": 0.5} for answer in ("2 \n", 20 * "so ")]
SUMS = {"name": "sums", "results": [{"question": "1+1", "completions": ANSWERS}]}
CHECKPOINT = {"metadata": {"model": "../models/inter_logic_qwen_3b_400"}, "categories": [{"datasets": [SUMS]}]}
BOTH = {
    "sierra-research/tau-bench": ("turns", [TRIAL]),
    "open-thought/reasoning-gym-eval": ("checkpoints", CHECKPOINT),
}


def sources(tmp_path, monkeypatch, files):
    """Files at hand, {repository: (set, content)}, and no network; tokens are bytes."""
    listed = {}
    for name, (of, content) in files.items():
        path = tmp_path / "sources" / name / "gpt-airline.json"
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


def test_conversations_say_what_was_generated_and_answers_their_epoch_and_reward(tmp_path, monkeypatch):
    assert main(sources(tmp_path, monkeypatch, BOTH)) == 0
    (turns,) = rows(tmp_path / "out" / "turns.jsonl.gz")
    text = turns["response_ids"]
    begin = b"<|im_start|>assistant\n"
    call = b'<tool_call>\n{"name": "find", "arguments": {"id": "x"}}\n</tool_call><|im_end|>'
    asked = b"<|im_start|>system\npolicy<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
    assert decode(turns["prompt_ids"]) == asked + begin
    assert [decode(text[first:end]) for first, end in turns["turns"]] == [b"who?<|im_end|>", call, b"done<|im_end|>"]
    given = b"\n<|im_start|>user\n<tool_response>\nfound\n</tool_response><|im_end|>\n" + begin
    assert decode(text[turns["turns"][1][1] : turns["turns"][2][0]]) == given
    assert (turns["prompt_id"], turns["epoch"], turns["reward"]) == ("tau/airline/7", 1, 1.0)
    answer, loop = rows(tmp_path / "out" / "checkpoints.jsonl.gz")
    assert (answer["epoch"], answer["reward"]) == (400, 0.5) and "turns" not in answer
    assert decode(answer["response_ids"]) == b"2 <|im_end|>"
    assert (answer["tail_rep"], loop["tail_rep"]) == (1, 20)


def test_a_file_that_is_another_one_is_named_and_the_other_sets_are_written(tmp_path, monkeypatch, capsys):
    arguments = sources(tmp_path, monkeypatch, BOTH)
    wrong = tmp_path / "sources" / "sierra-research" / "tau-bench" / "gpt-airline.json"
    wrong.write_text("[]")
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert f"MISSING: {wrong} has another SHA-256" in said and "turns lacks a source" in said
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
        answer = io.BytesIO((tmp_path / "sources" / name / "gpt-airline.json").read_bytes())
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
