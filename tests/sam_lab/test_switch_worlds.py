# SPDX-License-Identifier: Apache-2.0
"""Switch auto in a few of the worlds in which `switch-worlds` measures it."""

import itertools
import json
from types import SimpleNamespace

import pytest

from sam_lab.__main__ import main
from sam_lab.switch_worlds import acceptance
from sam_lab.switch_worlds.command import summary
from sam_lab.switch_worlds.world import ARMS, Scenario, play

RECORDS = acceptance.load()


def test_auto_loses_little_in_worlds_that_it_does_not_know():
    played = [play(Scenario(seed, RECORDS)) for seed in range(500_000, 500_006)]
    for took in (each["seconds"] for each in played):
        assert took["foresight"] <= min(took[arm] for arm in ARMS) * (1 + 1e-9), (
            "an arm beats the oracle with foresight"
        )
    found = summary(played)["quiet"]
    median, _, largest = found["regret"]
    assert median < 0.025 and largest < 0.08
    assert median < found["regret_batch"][0] and median < found["regret_plain"][0]


@pytest.mark.parametrize(
    ("seed", "share"),
    [
        (200_446, 0.98),  # verification costs a constant, which steps of more than 32 rows hide
        (200_536, 0.98),  # and those that read prompts
        (300_438, 0.99),  # most steps read prompts, so that nearly each is of an unknown size
        (120_860, 0.985),  # prompts take a thousand times as long as tokens
    ],
)
def test_drafts_that_never_pay_are_left(seed, share):
    took = play(Scenario(seed, RECORDS))["seconds"]
    assert took["plain"] < 1.005 * took["best"] and took["plain"] > share * took["auto"]


def test_the_command_writes_each_world(tmp_path, capsys, monkeypatch):
    ticks = itertools.count(0, 31)  # seconds
    monkeypatch.setattr("sam_core.console.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    assert main(["switch-worlds", "--worlds", "1", "--seed", "7", "--json", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert [world["seed"] for world in written["each"]] == [7]
    shown = capsys.readouterr()
    assert "1 worlds, seeds 7 to 7" in shown.out and "1 of 1 worlds" in shown.err
