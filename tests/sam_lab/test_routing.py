# SPDX-License-Identifier: Apache-2.0
"""The ways of routing that the lab compares, their engines run where the command does; orders of sending, simulated."""

import json
import random

import numpy as np
import pytest
from commands import refused

from sam_lab.__main__ import main
from sam_lab.orders import WAYS, compare, draw, ended, read_lengths, read_recipe
from sam_lab.plan.simulate import Policy
from sam_lab.routing import RECIPE, chooser


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--batch", "33"), "error: --batch must be at most --prompts, which is 32, got 33"),
        (("--replicas", "0"), "argument --replicas: invalid positive number value: '0'"),
        (("--n", "0"), "argument --n: invalid positive number value: '0'"),
        (("--steps", "0"), "argument --steps: invalid positive number value: '0'"),
        (("--seed", "-1"), "argument --seed: invalid non-negative number value: '-1'"),
        (("--model", "m"), "--model and --data go together"),
        (("--halves",), "--halves goes with --recording"),
        (("--set", "a=b"), "--set goes with --recording"),
        (("--draws", "3"), "--draws goes with --recording"),
        (("--recipe", "r.yaml"), "--recipe goes with --recording"),
    ],
)
def test_bad_usage_is_one_sentence(words, sentence, capsys):
    assert sentence in refused(main, capsys, "routing", *words)


def test_counting_needs_no_engine(capsys, tmp_path):
    out = tmp_path / "figures.json"
    sizes = ["--replicas", "4", "--prompts", "128", "--batch", "24", "--steps", "20", "--out", str(out)]
    assert main(["routing", *sizes]) == 0
    spread, sticky, unbound = json.loads(out.read_text())["ways"]
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert spread["imbalance"] == 1 and spread["returned"] == 0
    assert 1 <= sticky["imbalance"] < unbound["imbalance"] and sticky["worst"] <= 1.5 < unbound["worst"]
    assert 0.6 < sticky["returned"] < unbound["returned"] == 1


def test_one_batch_has_no_interval():
    assert compare([3.0], [2.0], 0) == [1.5]
    ratio, low, high = compare([3.0, 5.0], [2.0, 2.0], 0)
    assert (ratio, low, high) == (2, 1.5, 2.5)


def lengths_of(path, epochs):
    """A recording: 64 prompts with two answers of each epoch, by epoch of each prompt."""
    rows = [
        {"prompt_ids": [1], "response_ids": [1] * length, "prompt_id": f"p{prompt}", "tail_rep": 99}
        | ({"epoch": epoch} if len(epochs) > 1 else {})
        for epoch, of_prompt in enumerate(epochs)
        for prompt, lengths in enumerate(of_prompt)
        for length in lengths
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_lengths(path, False, 0)


def test_long_prompts_first_end_sooner_where_earlier_answers_foretell_them(tmp_path):
    rng = random.Random(0)
    now = [2 * [rng.choice((10, 20, 30, 300))] for _ in range(64)]
    other = rng.sample(now, len(now))
    plan, cost, mean = read_recipe(RECIPE, ["data.gen_batch_size=64", "rollout.max_num_seqs=32"])
    off = Policy.off(plan.slots)

    def seconds(pairs):
        batch = draw(pairs, plan, mean, np.random.default_rng(0))
        return {name: ended(plan, batch, way, cost, off)[0] for name, way in WAYS.items()}

    pairs, epochs = lengths_of(tmp_path / "same", [now, now])
    assert epochs and pairs[0] == (now[0], now[0])
    same = seconds(pairs)
    assert same["spread, longest mean first"] == same["spread, prompts foreseen"] < 0.95 * same["spread"]
    assert same["sticky, longest mean first"] < same["sticky"]
    assert same["sticky, fewest expected tokens"] < same["sticky"]
    pairs, _ = lengths_of(tmp_path / "other", [other, now])
    foretold, unrelated = same["spread, longest mean first"], seconds(pairs)["spread, longest mean first"]
    assert unrelated > 1.05 * foretold
    pairs, epochs = lengths_of(tmp_path / "halves", [now])
    assert not epochs and pairs[0] == ([now[0][0]], [now[0][1]])
