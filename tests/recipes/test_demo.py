# SPDX-License-Identifier: Apache-2.0
"""The demo: what ends it early, its turns with small processes for trainers, and a short one for real."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from llm_rl import demo, launch
from llm_rl.qwen3 import tiny_model

ROOT = Path(launch.ROOT)
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
    """started(off=..., on=...): commands in place of the launchers. The arms that were started, then the report."""
    calls = []
    monkeypatch.setattr(demo, "MEMORY", 0)

    def use(**commands):
        monkeypatch.setattr(demo, "command", lambda arm, *others: calls.append(arm) or commands[arm])
        monkeypatch.setattr(demo, "report", lambda argv: calls.append(argv) or 0)
        return calls

    return use


def test_the_launchers_commands(tmp_path):
    command = demo.command("on", tmp_path, ["seed=3"])
    assert command[3:] == [str(demo.RECIPE), "seed=3", "sam=batch", "--run-dir", str(tmp_path / "on")]


def test_one_trains_at_a_time_and_goes_on_where_the_other_fails(started, tmp_path, capfd):
    """`off` goes on at step 3 and fails in step 4; `on`, which is a step behind, catches up and trains to its end."""

    def trainer(arm, *steps):
        return [sys.executable, "-c", TRAINER, arm, *map(str, steps), str(tmp_path / "log")]

    calls = started(off=trainer("off", 3, 5, 4), on=trainer("on", 2, 5, 0))
    assert demo.main(["--out", str(tmp_path / "out")]) == 3
    turns = ["on 2", "on 3", "off 3", "off 4", "on 4", "on 5"]
    expected = [line for turn in turns for line in (f"{turn} begins", f"{turn} ends")]
    expected[expected.index("off 4 ends")] = "off fails"
    assert (tmp_path / "log").read_text().splitlines() == expected
    assert calls == ["off", "on"], "and no report"


def test_a_trainer_that_ended_while_it_waited_has_no_turn():
    (off, ended), (on, trains) = socket.socketpair(), socket.socketpair()
    ended.sendall(b"1\n")
    ended.close()
    trains.sendall(b"1\n2\n")
    trains.shutdown(socket.SHUT_WR)
    demo.take_turns({"off": off.makefile("rwb", buffering=0), "on": on.makefile("rwb", buffering=0)})
    assert trains.recv(9) == b"\n\n"


def test_arms_that_were_done_before_are_compared(started, tmp_path, capfd):
    calls = started(off=["echo", "of the off run"], on=["true"])
    assert demo.main(["--out", str(tmp_path)]) == 0
    report = ["report", f"--off={tmp_path / 'off'}", f"--on={tmp_path / 'on'}", f"--out={tmp_path}"]
    assert calls == ["off", "on", report]
    assert capfd.readouterr().out.splitlines()[0] == "off of the off run"


def test_an_arm_that_fails_while_it_starts_ends_the_demo(started, tmp_path):
    calls = started(off=["false"])
    assert demo.main(["--out", str(tmp_path)]) == 1
    assert calls == ["off"]


@pytest.mark.slow
def test_a_short_demo(tmp_path):
    """No engine of one arm works within a training step of the other."""
    if psutil.virtual_memory().available < 1.2 * demo.MEMORY:
        pytest.skip("the demo needs 11 GB, and other tests take the rest")
    command = [sys.executable, "-m", "llm_rl.demo", "--out", tmp_path, "steps=3"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = ended.stdout.partition("== comparison\n")[2]
    assert said.startswith("In training steps 2 to 3 SAM on took ") and "no gain is shown" in said
    for arm in demo.ARMS:
        assert f"\n{arm:<3}   step 3/3 " in ended.stdout
    rows = [
        (row[0], arm)
        for arm in demo.ARMS
        for row in map(json.loads, (tmp_path / arm / "engine-0.jsonl").read_text().splitlines())
        if row[2]
    ]
    turns = [arm for arm, _ in groupby(arm for _, arm in sorted(rows))]
    assert turns == ["off", "on", "off", "on"], "each but the first begins with the arm of the last"


def test_what_would_end_it_later_ends_it_before_any_work(started, tmp_path, monkeypatch, capsys):
    calls = started()

    def refused(*overrides):
        assert demo.main(["--out", str(tmp_path), *overrides]) == 1
        return capsys.readouterr().err

    error = refused("verl.trainer.nonsense=1")
    assert error.startswith("error: verl 0.9.1 rejects the recipe") and error.count("\n") == 1
    with launch.lock_folder(tmp_path):
        assert f"a run is still going on in {tmp_path}" in refused()
    usage = namedtuple("usage", "total used free")(10**12, 10**12 - 10**8, 10**8)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage)
        assert f"{tmp_path} has 0.1 GB of disk left and the demo needs 1 GB" in refused()
    with monkeypatch.context() as full:
        full.setattr(demo, "MEMORY", 1e15)
        assert "GB of memory are available and the demo needs 1000000 GB" in refused()
    monkeypatch.setattr(tiny_model, "check", lambda: "llm_rl/qwen3/tiny/config.json is not the file")
    assert refused() == "error: llm_rl/qwen3/tiny/config.json is not the file\n"
    assert not calls and not (tmp_path / "off").exists()


def test_make_refuses_a_pin_set_without_a_demo_before_any_download():
    begin = time.monotonic()
    ended = subprocess.run(["make", "demo", "PIN=vllm-0.11"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode and time.monotonic() - begin < 10
    assert "make demo: vllm-0.11 is no pin set with a recipe for a CPU: choose from vllm-0.23" in ended.stderr
    assert "setup-env" not in ended.stderr


def test_a_script_refuses_a_wrong_key_before_any_work(tmp_path):
    script = ROOT / "llm_rl" / "qwen3" / "run_dapo_qwen3_tiny_cpu.sh"
    ended = subprocess.run([script, "stepz=3", "--run-dir", tmp_path / "run"], capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("error: unknown key 'stepz': is steps meant?")
    assert not ended.stdout and not (tmp_path / "run").exists()
