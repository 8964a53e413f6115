# SPDX-License-Identifier: Apache-2.0
"""What ends the demo before it has run anything; the runs themselves are test_dapo_run.py's."""

import shutil
import subprocess
import time
from collections import namedtuple
from pathlib import Path

import pytest

from llm_rl import demo, launch
from llm_rl.qwen3 import tiny_model

ROOT = Path(launch.ROOT)


@pytest.fixture
def started(monkeypatch):
    """What the demo would run, one list of arguments an arm."""
    calls = []
    monkeypatch.setattr(launch, "main", lambda argv: calls.append(argv) or 0)
    monkeypatch.setattr(demo, "report", lambda argv: calls.append(argv) or 0)
    return calls


def test_both_arms_then_the_report(started, tmp_path):
    assert demo.main(["--out", str(tmp_path), "seed=3"]) == 0
    off, on, report = started
    assert off[1:] == ["seed=3", "sam=off", "--run-dir", str(tmp_path / "off")]
    assert on[1:] == ["seed=3", "sam=batch", "--run-dir", str(tmp_path / "on")]
    assert report == ["report", f"--off={tmp_path / 'off'}", f"--on={tmp_path / 'on'}", f"--out={tmp_path}"]


def test_what_would_end_it_later_ends_it_before_any_work(started, tmp_path, monkeypatch, capsys):
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
    monkeypatch.setattr(tiny_model, "check", lambda: "llm_rl/qwen3/tiny/config.json is not the file")
    assert refused() == "error: llm_rl/qwen3/tiny/config.json is not the file\n"
    assert not started and not (tmp_path / "off").exists()


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
