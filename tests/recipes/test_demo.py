# SPDX-License-Identifier: Apache-2.0
"""The demo: errors that end it early, turns of small processes in place of trainers, and a short real demo."""

import json
import subprocess
import sys
from itertools import groupby

import psutil
import pytest

from llm_rl import demo, forks, launch
from llm_rl.qwen3 import tiny_model

TRAINER = """
import sys, time
import llm_rl.turns
from verl.utils.skip import SkipManager

arm, first, last, fails, log = sys.argv[1], *map(int, sys.argv[2:5]), open(sys.argv[5], "a", buffering=1)
for step in range(first, last + 1):
    SkipManager.set_step(step)
    print(f"{arm} {step} begins", file=log)
    time.sleep(0.1)
    if step == fails:
        print(f"{arm} fails", file=log)
        sys.exit(3)
    print(f"{arm} {step} ends", file=log)
SkipManager.set_step(step + 1)
"""


@pytest.fixture
def started(monkeypatch):
    """started(off=..., on=...): replace the launchers by commands; return the list of started arms and reports."""
    calls = []
    monkeypatch.setattr(demo, "MEMORY", 0)
    monkeypatch.setattr(demo, "MODULES", [])

    def use(**commands):
        monkeypatch.setattr(demo, "command", lambda arm, *others: calls.append(arm) or commands[arm])
        monkeypatch.setattr(demo, "report", lambda argv: calls.append(argv) or 0)
        return calls

    return use


def test_one_trains_at_a_time_and_goes_on_where_the_other_fails(started, forked, tmp_path, capfd):
    """`off` resumes at step 3 and fails in step 4; `on` resumes at step 2, catches up and trains to its end."""

    def trainer(arm, *steps):
        return [f"{forked[forks.ENV_FOLDER]}/python", "-c", TRAINER, arm, *map(str, steps), str(tmp_path / "log")]

    calls = started(off=trainer("off", 3, 5, 4), on=trainer("on", 2, 5, 0))
    assert demo.main(["--out", str(tmp_path / "out")]) == 3
    turns = ["on 2", "on 3", "off 3", "off 4", "on 4", "on 5"]
    expected = [line for turn in turns for line in (f"{turn} begins", f"{turn} ends")]
    expected[expected.index("off 4 ends")] = "off fails"
    assert (tmp_path / "log").read_text().splitlines() == expected
    assert calls == ["off", "on"], "a failed arm has no report"


def test_arms_that_were_done_before_are_compared(started, tmp_path, capfd):
    calls = started(off=["echo", "of the off run"], on=["true"])
    assert demo.main(["--out", str(tmp_path)]) == 0
    assert calls == ["off", "on", ["report", *(f"--{arm}={tmp_path / arm}" for arm in calls[:2]), f"--out={tmp_path}"]]
    assert capfd.readouterr().out.splitlines()[0] == "off of the off run"


def test_an_arm_that_fails_while_it_starts_ends_the_demo(started, tmp_path):
    calls = started(off=["false"])
    assert demo.main(["--out", str(tmp_path)]) == 1 and calls == ["off"]


@pytest.mark.slow
def test_a_short_demo(tmp_path):
    """No engine of one arm works within a training step of the other."""
    if psutil.virtual_memory().available < 1.2 * demo.MEMORY:
        pytest.skip(f"the demo needs {demo.MEMORY / 1e9:.0f} GB, and other tests take the rest")
    command = [sys.executable, "-m", "llm_rl.demo", "--out", tmp_path, "steps=3"]
    ended = subprocess.run(command, cwd=launch.ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = ended.stdout.partition("== comparison\n")[2]
    assert said.startswith("In training steps 2 to 3 SAM on took ") and "no gain is shown" in said
    for arm in demo.ARMS:
        assert f"\n{arm:<3}   step 3/3 " in ended.stdout
    rows = []
    for arm in demo.ARMS:
        read = map(json.loads, (tmp_path / arm / "engine-0.jsonl").read_text().splitlines())
        rows += [(start, arm) for start, _, running, *_ in read if running]
    turns = [arm for arm, _ in groupby(arm for _, arm in sorted(rows))]
    assert turns == ["off", "on", "off", "on"], "each but the first begins with the arm of the last"


def test_what_would_end_it_later_ends_it_before_any_work(started, tmp_path, monkeypatch, capsys):
    calls = started()

    def refused(*overrides):
        assert demo.main(["--out", str(tmp_path), *overrides]) == 1
        return capsys.readouterr().err

    error = refused("verl.trainer.nonsense=1")
    assert error.startswith("error: verl 0.9.1 has no key trainer.nonsense: ") and error.count("\n") == 1
    with launch.lock_folder(tmp_path):
        assert f"a run is still active in {tmp_path}" in refused()
    monkeypatch.setattr(demo, "MEMORY", 1e15)
    assert "GB of memory are available and the demo needs 1000000 GB" in refused()
    monkeypatch.setattr(demo, "DISK", 1e18)
    assert "GB of disk left and the demo needs 1000000000 GB" in refused()
    monkeypatch.setattr(tiny_model, "check", lambda: "llm_rl/qwen3/tiny/config.json is not the file")
    assert refused() == "error: llm_rl/qwen3/tiny/config.json is not the file\n"
    assert not calls and not (tmp_path / "off").exists()


def test_make_refuses_a_pin_set_without_a_demo_before_any_download():
    ended = subprocess.run(["make", "demo", "PIN=vllm-0.11"], cwd=launch.ROOT, capture_output=True, text=True)
    assert ended.returncode
    assert "make demo: vllm-0.11 is no pin set with a recipe for a CPU: choose from vllm-0.23" in ended.stderr
    assert "setup-env" not in ended.stderr
