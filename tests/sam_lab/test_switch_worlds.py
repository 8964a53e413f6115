# SPDX-License-Identifier: Apache-2.0
"""Switch auto in a few of the worlds in which `switch-worlds` measures it."""

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from commands import refused

from sam_lab.__main__ import main
from sam_lab.evidence.worlds import worlds
from sam_lab.methods.pool import Draft
from sam_lab.switch_worlds import acceptance
from sam_lab.switch_worlds.command import summary
from sam_lab.switch_worlds.world import ARMS, World, play

RECORDS = acceptance.load()


def test_auto_loses_little_in_worlds_that_it_does_not_know():
    found = summary([play(World(seed, RECORDS)) for seed in range(500_000, 500_010)])
    median, _, largest = found["regret"]
    assert median < 0.025 and largest < 0.08
    assert median < found["regret_batch"][0] and median < found["regret_plain"][0]


def test_exploring_beside_prompts_costs_no_more_than_its_share():
    """A world in which drafts never pay, and most steps read prompts, so that nearly each is of an unknown size."""
    took = play(World(300_438, RECORDS))["seconds"]
    assert took["plain"] < 1.005 * took["best"] and took["plain"] > 0.99 * took["auto"]


@pytest.mark.parametrize("seed", [200_446, 200_738, 200_536])
def test_drafts_that_never_pay_are_left(seed):
    """Verification costs a constant, which steps of more than 32 rows hide, as those do that read prompts."""
    took = play(World(seed, RECORDS))["seconds"]
    assert took["plain"] < 1.005 * took["best"] and took["plain"] > 0.98 * took["auto"]


@pytest.mark.parametrize("seed", [120_860, 140_018])
def test_prompts_do_not_tempt_to_draft(seed):
    """Prompts take a thousand times as long as tokens; nothing else is known while a rollout's prompts are read."""
    took = play(World(seed, RECORDS))["seconds"]
    assert took["plain"] < 1.005 * took["best"] and took["plain"] > 0.985 * took["auto"]


def test_no_step_beats_the_oracle_with_foresight():
    for seed in range(500_100, 500_103):
        took = play(World(seed, RECORDS))["seconds"]
        assert took["foresight"] <= min(took[arm] for arm in ARMS) * (1 + 1e-9)


def test_a_costly_verification_is_learned():
    record = next(record for record in RECORDS if "group" in record.name)
    world = World(500_200, [record], worlds(["article"])[0])
    took = play(world)["seconds"]
    assert took["best"] <= took["auto"] * (1 + 1e-9) and took["auto"] < 1.06 * took["best"]


def test_a_seed_is_a_world():
    first, again, other = (World(seed, RECORDS) for seed in (3, 3, 4))
    assert first.facts == again.facts != other.facts
    assert np.array_equal(first.slow, again.slow)


def test_the_table_holds_drafts_and_what_they_hold():
    assert len(RECORDS) == 18
    for record in RECORDS:
        assert record.scores.shape == record.truth.shape == (acceptance.RUNS, acceptance.STEPS, acceptance.K)
        assert ((record.truth > 0) == (record.scores > 0)).all()
        assert (np.diff(record.truth, axis=2) <= 0).all() and record.truth.max() <= 1


def test_the_command_writes_each_world(tmp_path, capsys, monkeypatch):
    ticks = itertools.count(0, 31)  # seconds
    monkeypatch.setattr("sam_core.console.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    assert main(["switch-worlds", "--worlds", "2", "--seed", "7", "--json", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert [world["seed"] for world in written["each"]] == [7, 8]
    shown = capsys.readouterr()
    assert "2 worlds, seeds 7 to 8" in shown.out and "2 of 2 worlds" in shown.err


def recording(path, tokens):
    with open(path, "w") as file:
        for i in range(24):
            file.write(json.dumps({"prompt_id": str(i), "prompt_ids": [1, 2, 3], "response_ids": tokens}) + "\n")
    return str(path)


def test_a_table_is_derived_from_recordings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(acceptance, "TABLE", tmp_path / "table.json")
    assert main(["switch-worlds", "--derive", recording(tmp_path / "answers.jsonl", [4, 5, 6, 7] * 40)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/table.json: 2 sets\n"
    records = acceptance.load(tmp_path / "table.json")
    assert [record.name for record in records] == ["answers, request", "answers, group"]
    assert all(math.isfinite(record.truth.sum()) and record.truth.max() > 0.8 for record in records)


def test_a_recording_that_is_none_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(acceptance, "TABLE", tmp_path / "table.json")
    (tmp_path / "answers.jsonl").write_text("{}\n")
    assert "error:" in refused(main, capsys, "switch-worlds", "--derive", tmp_path / "answers.jsonl")
    few = recording(tmp_path / "few.jsonl", [4, 5, 6, 7] * 4)
    assert "runs of 32 drafts in context request, 8 are needed" in refused(
        main, capsys, "switch-worlds", "--derive", few
    )
    never = [Draft(i % 8, 0, np.full(8, 0.5, np.float32), 0) for i in range(8 * 32)]
    monkeypatch.setattr(acceptance, "replay", lambda drafter, *of: drafter.drafts.extend(never))
    assert "no drafted token is accepted" in refused(main, capsys, "switch-worlds", "--derive", few)
    assert not (tmp_path / "table.json").exists()
