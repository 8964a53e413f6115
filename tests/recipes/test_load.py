# SPDX-License-Identifier: Apache-2.0
"""The launcher's record of other processes' load on the machine."""

import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from llm_rl import load


def test_a_process_is_its_own_load_and_anothers(monkeypatch):
    """The busy process and its child are others' load to the first meter, but not to its own and the demo's meter."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    idle, busy = (subprocess.Popen([sys.executable, "-c", code]) for code in ("import time; time.sleep(600)", child))
    try:
        while not psutil.Process(busy.pid).children():
            time.sleep(0.05)
        (loop,) = psutil.Process(busy.pid).children()
        meters = [load.Load(idle.pid), load.Load(busy.pid)]
        monkeypatch.setenv("SAM_TURNS", "")
        meters.append(load.Load(idle.pid))
        start, before = sum(psutil.cpu_times()), loop.cpu_times().user
        while (taken := loop.cpu_times().user - before) < 0.5:
            time.sleep(0.05)
        others, *own = (meter.take()["others"] for meter in meters)
        share = taken / (sum(psutil.cpu_times()) - start)
        assert [others - each for each in own] == pytest.approx([share] * 2, rel=0.3, abs=0.02)
    finally:
        for one in (loop, idle, busy):
            one.kill()
            one.wait()


def test_shares(monkeypatch):
    """10 s of CPU time: 4 s idle or waiting for a disk, 1 s stolen, 3 s used by the run, so 2 s used by others."""

    class Times(SimpleNamespace):
        def __iter__(self):
            return iter(vars(self).values())

    machine = Times(user=50.0, nice=0.0, system=5.0, idle=100.0, iowait=2.0, steal=1.0, guest=7.0)
    own = SimpleNamespace(user=20.0, system=1.0)
    monkeypatch.setattr(load.psutil, "cpu_times", lambda: machine)
    monkeypatch.setattr(load.psutil.Process, "cpu_times", lambda self: own)
    monkeypatch.setattr(load.psutil.Process, "children", lambda self, recursive: [])  # a fixture may have started some
    meter = load.Load(psutil.Process().pid)
    machine.user, machine.system, machine.idle, machine.iowait, machine.steal = 54.0, 6.0, 103.0, 3.0, 2.0
    own.user += 3.0
    assert meter.take() == {"others": 0.2, "steal": 0.1}
    assert meter.take() == {"others": 0.0, "steal": 0.0}
    assert not load.busy({"others": 0.09, "steal": 0.09})
    assert load.busy({"others": 0.1, "steal": 0.0}) and load.busy({"others": 0.0, "steal": 0.1})
