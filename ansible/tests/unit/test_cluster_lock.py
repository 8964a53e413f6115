# SPDX-License-Identifier: Apache-2.0
"""Only one playbook at a time may change a cluster; a process that has ended loses the lock."""

import json
import os
import socket
import subprocess
import time

import pytest
from ansible_collections.sam_rl.ascend.plugins.action import cluster_lock


@pytest.fixture
def lock(play, tmp_path):
    """The path of the lock, and a function that runs a play with a task per state and returns (status, output)."""
    path = tmp_path / "lock"

    def run(*states, **arguments):
        tasks = [
            {"sam_rl.ascend.cluster_lock": {"host": "h", "path": str(path), "what": "w", "state": state, **arguments}}
            for state in states
        ]
        return play([{"tasks": tasks}])

    return path, run


def held(path, minutes, **owner):
    """Write the lock of another owner, whose last sign of life was `minutes` ago."""
    owner = {"user": "ann", "machine": "elsewhere", "process": 7, "what": "Provision the hosts", **owner}
    path.write_text(json.dumps({**owner, "since": 0}))
    os.utime(path, (time.time() - 60 * minutes,) * 2)


def test_the_lock_of_another_machine_ends_in_time_or_when_it_is_broken(lock):
    path, run = lock
    held(path, 100)
    status, said = run("held", "free")
    sentence = "h: ann on elsewhere (process 7) has been running 'Provision the hosts' on this cluster since 1970-01-01"
    assert status != 0 and sentence in said and "which was 100 minutes ago; to remove it now, add -e" in said, said
    assert json.loads(path.read_text())["user"] == "ann"
    assert run("held", minutes=90)[0] == 0 and json.loads(path.read_text())["what"] == "w"
    held(path, 0)
    assert run("free")[0] == 0 and path.exists(), "nobody gives back the lock of another"
    assert run("held", **{"break": True})[0] == 0 and json.loads(path.read_text())["machine"] == socket.gethostname()


def test_a_playbook_takes_it_again_and_gives_it_back(lock):
    path, run = lock
    status, said = run("held", "held", "free")
    assert status == 0 and path.read_text() == "", said


def test_the_lock_of_a_process_here_that_has_ended_is_taken_over(lock):
    path, run = lock
    held(path, 0, machine=socket.gethostname(), process=os.getpid())
    assert run("held")[0] != 0
    held(path, 0, machine=socket.gethostname(), process=2**22 + 1)
    assert run("held")[0] == 0


def test_a_lock_that_was_not_written_whole_is_held(lock):
    path, run = lock
    held(path, 0)
    path.write_text(path.read_text()[:20])
    status, said = run("held")
    assert status != 0 and "h: another playbook, whose record is incomplete, changes this cluster: wait" in said


def test_one_of_many_that_take_it_at_once_has_it(tmp_path):
    """Of 20 processes, one gets the lock, and all others are told the same holder."""
    words = [cluster_lock.command(str(tmp_path / "lock"), "held", f"{{{n}, ", "}", 9, False) for n in range(20)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in words]
    said = [process.communicate()[0] for process in started]
    assert said.count("") == 1
    assert {text.split("\n")[1] for text in said if text} == {(tmp_path / "lock").read_text().strip()}
