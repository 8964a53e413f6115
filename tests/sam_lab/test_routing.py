# SPDX-License-Identifier: Apache-2.0
"""The ways of routing that the lab compares; their engines run where the command does."""

import json
import random

import pytest

from sam_lab.__main__ import main
from sam_lab.routing import chooser


def routed(way, steps):
    """For each step of prompts, with 8 answers to each, the replicas of every prompt."""
    choose, ended = chooser(way, random.Random(0))
    found = []
    for number, prompts in enumerate(steps):
        in_flight, names = {0: 0, 1: 0}, []
        found.append([])
        for prompt in prompts:
            replicas = []
            for sibling in range(8):
                names.append(f"{number}-{prompt}-{sibling}")
                replicas.append(choose(names[-1], [prompt, 1], in_flight))
                in_flight[replicas[-1]] += 1
            found[-1].append(set(replicas))
        for name in names:
            ended(name)
    return found


def test_ways_differ_in_what_they_say():
    steps = [range(8), (0, 2, 4, 6)]
    assert routed("spread", steps) == [8 * [{0, 1}], 4 * [{0, 1}]]
    first, again = routed("sticky", steps)
    assert [len(home) for home in first] == 8 * [1] and first.count({0}) == 4
    assert again != 4 * again[:1], "the bound does not hold"
    first, again = routed("sticky, no bound", steps)
    assert again == first[::2] == 4 * again[:1]


@pytest.mark.parametrize("batch", ["0", "33"])
def test_more_prompts_a_step_than_there_are_is_one_sentence(batch, capsys):
    assert main(["routing", "--batch", batch]) == 2
    assert capsys.readouterr().err == f"error: --batch must be from 1 to --prompts, which is 32, got {batch}\n"


def test_counting_needs_no_engine(capsys, tmp_path):
    out = tmp_path / "figures.json"
    sizes = ["--replicas", "4", "--prompts", "128", "--batch", "24", "--steps", "20", "--out", str(out)]
    assert main(["routing", *sizes]) == 0
    spread, sticky, unbound = json.loads(out.read_text())["ways"]
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert spread["imbalance"] == 1 and spread["returned"] == 0
    assert 1 <= sticky["imbalance"] < unbound["imbalance"] and sticky["worst"] <= 1.5 < unbound["worst"]
    assert 0.6 < sticky["returned"] < unbound["returned"] == 1
    assert main(["routing", "--model", "m"]) == 2
    assert "--model and --data go together" in capsys.readouterr().err
