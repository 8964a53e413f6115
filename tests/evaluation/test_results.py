# SPDX-License-Identifier: Apache-2.0
"""Files of results, their comparison, and the figures of the operator check, without an engine."""

import contextlib
import json
import random
import re

import pytest

from llm_rl import check_operators
from llm_rl.errors import UserError
from llm_rl.evaluation import generate, questions
from llm_rl.evaluation.__main__ import main
from llm_rl.evaluation.compare import compare, table
from llm_rl.evaluation.engine import GeneratedAnswer

SAM = {"rule": "oldest", "threshold": 64, "verify": "rejection"}


def header(sam, **other):
    made = {"questions": 40, "data": "q.parquet", "data_sha256": "0", "model": "m", "n": 4, "temperature": 0.6}
    made |= {"top_p": 1.0, "top_k": 0, "max_tokens": 64, "seed": 0, "template": {}, "sam": sam, "sam_options": SAM}
    return made | {"k": 3 if sam == "batch" else 0} | other


def write(path, head, chance=0.6, seed=2):
    """Write a file of results in which each answer is right with probability `chance`; return its path."""
    rng = random.Random(seed)
    lines = [head]
    for i in range(head["questions"]):
        texts = [f"#### {5 if rng.random() < chance else 6}" for _ in range(head["n"])]
        answers = [{"text": t, "tokens": 3 + len(t), "hash": str(rng.random()), "finish": "stop"} for t in texts]
        row = {"key": str(i), "data_source": "openai/gsm8k", "truth": "5", "answers": answers}
        lines.append(row | ({"drafted": 9, "accepted": 4} if head["k"] else {"drafted": 0, "accepted": 0}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def off(tmp_path):
    return write(tmp_path / "off.jsonl", header("off"), seed=1)


def test_equal_arms(off, tmp_path):
    on = write(tmp_path / "on.jsonl", header("batch"))
    found = compare(off, on)
    assert (found["questions"], found["drafted"], found["accepted"], found["equal_answers"]) == (40, 360, 160, 0)
    assert found["difference"]["low"] < 0 < found["difference"]["high"] and not found["differs"]
    assert found["difference"]["value"] == pytest.approx(found["on"]["value"] - found["off"]["value"])
    assert re.match("No significant difference: .*points would have been detected", found["verdict"])
    assert f"| pass@1 | {found['off']['value']:.1%} | {found['on']['value']:.1%} |" in table(found)


def test_arms_that_differ_and_arms_of_equal_texts(off, tmp_path):
    found = compare(off, write(tmp_path / "on.jsonl", header("batch"), chance=0.3))
    assert found["differs"] and found["p_value"] < 0.001 and found["difference"]["high"] < 0
    assert found["verdict"].startswith("pass@1 differs: -")
    found = compare(off, write(tmp_path / "on.jsonl", header("batch"), seed=1))
    assert found["equal_answers"] == 160 and found["verdict"].startswith("All 160 answers are equal token for token")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temperature": 1.0}, "the runs differ in temperature"),
        ({"data_sha256": "1", "model": "n"}, "the runs differ in data_sha256, model"),
        ({"sam": "off"}, "was made with --sam off: name the run with --sam off first"),
        ({"k": 0}, "no draft was accepted, so this run"),
        ({"engine": {"dtype": "float16"}}, "the runs differ in engine"),
    ],
)
def test_runs_that_cannot_be_compared(off, tmp_path, change, reason):
    with pytest.raises(UserError, match=reason):
        compare(off, write(tmp_path / "on.jsonl", header("batch") | change))


def test_a_comparison_does_not_replace_what_it_reads(off, tmp_path, capsys):
    before = off.read_bytes()
    on = write(tmp_path / "on.jsonl", header("batch"))
    assert main(["compare", str(off), str(on), "--out", str(off)]) == 2
    assert "is also an input or another output" in capsys.readouterr().err and off.read_bytes() == before


def test_an_unfinished_run_is_not_compared(off, tmp_path):
    on = write(tmp_path / "on.jsonl", header("batch"))
    lines = on.read_bytes().split(b"\n")
    for left, done in (([*lines[:11], lines[11][:20]], 10), ([lines[0], *lines[11:]], 30)):
        on.write_bytes(b"\n".join(left))
        with pytest.raises(UserError, match=f"on.jsonl has {done} of 40 questions: call `run` again"):
            compare(off, on)


def open_results(path, head):
    """Open a file of results and append a row and a torn row; return the questions that were done before."""
    with generate._results(path, head) as (file, done):
        row = {"key": str(len(done)), "answers": [1] * head["n"]}
        file.write(json.dumps(row).encode() + b"\n")
        file.write(b'{"key": "torn')
        return done


@pytest.mark.parametrize("content", ["", "{}\n", "text", '{"questions": 1, "n": "x"}\n'])
def test_a_file_that_holds_no_results_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(UserError, match="file is not a file of results"):
        generate.read(path)
    with pytest.raises(UserError, match="file is ") if content else contextlib.nullcontext():
        open_results(path, header("off"))
    assert not content or path.read_text() == content


def test_results_go_on_behind_the_last_whole_row(tmp_path):
    path, head = tmp_path / "made" / "on.jsonl", header("batch")
    for whole in range(3):
        assert list(open_results(path, head)) == [str(i) for i in range(whole)]
    assert generate.read(path)[0] == head
    before = path.read_bytes()
    with pytest.raises(UserError, match="begun with other settings .seed 0 there, 1 now.: name a new file"):
        open_results(path, head | {"seed": 1})
    with generate._results(path, head), pytest.raises(UserError, match="is being written by another call"):
        open_results(path, head)
    assert path.read_bytes() == before.rpartition(b"\n")[0] + b"\n"


WRONG = dict.fromkeys(("top-p", "limit", "batch", "k", "tensor-parallel"), 0) | {"top-k": -1, "temperature": -1}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_before_the_engine_starts(capsys, name):
    words = ["run", "--sam", "off", "--model", "m", "--data", "none.parquet", "--out", "absent/a"]
    assert main([*words, f"--{name}", str(WRONG[name])]) == 2
    assert capsys.readouterr().err.startswith(f"error: --{name} must be ")


def test_questions(tmp_path):
    def row(text, **other):
        prompt = [{"content": text, "role": "user"}]
        return {"data_source": "openai/gsm8k", "prompt": prompt, "reward_model": {"ground_truth": "5"}} | other

    def read(*rows, limit=None):
        (tmp_path / "q.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        return questions.read(tmp_path / "q.jsonl", limit)

    first, second = read(row("a"), row("b"))
    assert first.key != second.key and first.messages == [{"content": "a", "role": "user"}] and first.truth == "5"
    assert read(row("a"), row("b"), limit=1) == [first]
    for rows, reason in (
        ([row("a"), row("a")], "line 2, repeats a question"),
        (
            [row("a", data_source="aime", reward_model={"ground_truth": "033"})],
            "line 1: the result '033' has leading zeros",
        ),
        ([row("a"), {"question": "b"}], "line 2: not in verl's schema"),
        ([row("a", data_source="codeforces")], "line 1: no scorer for data_source 'codeforces'"),
        ([row("a", reward_model={"ground_truth": 5})], "line 1: not in verl's schema"),
        ([], "has no questions"),
    ):
        with pytest.raises(UserError, match=reason):
            read(*rows)


def test_differences_of_operators_are_seen_up_to_the_token_that_differs():
    decoded = [GeneratedAnswer([1, 2, 3], [-1.0, -2.0, -3.0]), GeneratedAnswer([4, 5, 6], [-1.0, -1.0, -1.0])]
    verified = [
        GeneratedAnswer([1, 2, 3], [-1.0, -2.5, -3.0], steps=[1, 2]),
        GeneratedAnswer([4, 9, 6], [-1.25, -7.0, -8.0], steps=[3]),
    ]
    found = check_operators.compare(decoded, verified)
    assert found == {"differences": [0.0, -0.5, 0.0, -0.25], "places": [0, 0, 1, 0], "diverged": 1}
    figures = check_operators.summary(found, 0.5)
    assert (figures["tokens"], figures["largest"], figures["mean"], figures["equal_share"]) == (4, 0.5, 0.1875, 0.5)
    assert [(row["place"], row["tokens"], row["largest"]) for row in figures["by_place"]] == [(0, 3, 0.5), (1, 1, 0.0)]
    assert not figures["within"], "few large differences are rounding, large ones on average are not"
    assert check_operators.summary(found, 2)["within"] and not check_operators.summary(found, 0.4)["within"]
