# SPDX-License-Identifier: Apache-2.0
"""`sam_lab kept`: what each choice of earlier answers gains."""

import json
import random

import pytest
from recording import line, write

from sam_lab.__main__ import main


@pytest.fixture
def epochs(tmp_path):
    """Twenty prompts: of four earlier answers the third has the reward, and is what the last epoch says again."""
    rng = random.Random(2)
    rows = []
    for prompt in range(20):
        answers = [[rng.randrange(3000) for _ in range(60)] for _ in range(4)]
        rewards = [0, 0, 1, 0]
        rows += [line(prompt, a, epoch=i, reward=r) for i, (a, r) in enumerate(zip(answers, rewards, strict=True))]
        rows.append(line(prompt, answers[2], epoch=4))
    return write(tmp_path / "epochs.jsonl", rows)


def test_each_choice_keeps_what_it_says(epochs, tmp_path):
    out = tmp_path / "out.json"
    assert main(["kept", str(epochs), "--keep", "1", "2", "--out", str(out)]) == 0
    rows = {(row["keep"], row["kept"]): row for row in json.loads(out.read_text())["rows"]}
    assert {row["tokens"] for row in rows.values()} == {20 * 60}
    found = {key for key, row in rows.items() if row["tokens_per_step"] > 1.5}
    assert found - {(2, "random")} == {
        *((keep, name) for keep in (1, 2) for name in ("highest reward", "all")),
        (2, "newest"),
    }
    assert rows[1, "newest"]["ratio"] == 1 < rows[1, "highest reward"]["low"]


def test_one_prompt_has_no_interval(tmp_path, capsys):
    path, out = write(tmp_path / "a.jsonl", [line("p", epoch=i) for i in range(3)]), tmp_path / "out.json"
    assert main(["kept", str(path), "--keep", "1", "--out", str(out)]) == 0
    assert all(row["low"] is row["high"] is None for row in json.loads(out.read_text())["rows"])
    assert {line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]} == {"-"}


def test_wrong_input_is_one_sentence(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [line("p", epoch=i, reward=i) for i in range(3)])
    assert main(["kept", str(path), "--keep", "2"]) == 2
    assert "has no prompt with more than 2 answers of earlier epochs: lower --keep" in capsys.readouterr().err
    write(path, [line("p", reward="high")])
    assert main(["kept", str(path)]) == 2
    assert "line 1: reward is 'high', which is not a number" in capsys.readouterr().err
