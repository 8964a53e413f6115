# SPDX-License-Identifier: Apache-2.0
"""`sam_lab resumed`: answers that are cut up, or have turns, by the way groups are formed."""

import functools
import json
import random

import pytest
from commands import refused

from sam_lab.__main__ import main
from sam_lab.methods.pool import SamDrafter


@pytest.fixture
def conversations(tmp_path):
    """Four tasks of three trials each: the same random calls and answers, another greeting and other results of tools."""
    rng = random.Random(1)
    path = tmp_path / "turns.jsonl"
    with open(path, "w") as file:
        for task in range(4):
            calls = [[rng.randrange(1000) for _ in range(40)] for _ in range(3)]
            for trial in range(3):
                answer, turns = [], []
                for call in calls:
                    turns.append([len(answer), len(answer) + len(call)])
                    answer += [*call, *[2000 + rng.randrange(1000) for _ in range(7)]]
                line = {"prompt_id": task, "group": str(task), "prompt_ids": [task, 5000 + trial], "turns": turns}
                file.write(json.dumps(line | {"response_ids": answer[:-7]}) + "\n")
    return path


def measured(tmp_path, *words):
    assert main(["resumed", *map(str, words), "--out", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    return {(row["cut"], row["groups"]): row for row in rows}


def test_names_keep_turns_and_parts_together(conversations, tmp_path, monkeypatch):
    # Source common knows here nearly what the named groups know.
    monkeypatch.setattr(
        "sam_lab.resumed.SamDrafter", functools.partial(SamDrafter, sources=("request", "group", "history"))
    )
    rows = measured(tmp_path, conversations, "--cut", 0, 16, "--context", "sequential")
    assert {row["tokens"] for row in rows.values()} == {4 * 3 * 120}
    for cut in (0, 16):
        whole, by_name, by_tokens = (rows[cut, arm] for arm in ("uninterrupted", "by name", "by tokens"))
        assert by_name["tokens_per_step"] > 1.5 > 1.1 > by_tokens["tokens_per_step"]
        assert by_name["low"] > 1.4 and by_tokens["ratio"] == 1
        assert whole["tokens_per_step"] >= by_name["tokens_per_step"]
    together = measured(tmp_path, conversations)
    assert together[0, "by name"]["tokens_per_step"] < rows[0, "by name"]["tokens_per_step"]


@pytest.mark.parametrize(
    ("turns", "words", "message"),
    [
        ([[0, 9]], (), "turns must be [first, end] of parts of response_ids, in order, got [0, 9]"),
        ([[0, 1], [0, 2]], (), "got [0, 2]"),
        (3, (), "got None"),
        ([[0, 1]], (), "has no prompt with several answers"),
        ([[0, 1]], ("--cut", "-1"), "argument --cut: invalid non-negative number value: '-1'"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, turns, words, message, capsys):
    path = tmp_path / "wrong.jsonl"
    path.write_text(json.dumps({"prompt_id": 1, "prompt_ids": [1], "response_ids": [1, 2, 3], "turns": turns}))
    assert message in refused(main, capsys, "resumed", path, *words)
