# SPDX-License-Identifier: Apache-2.0
"""Following a job ends when the job ends or when hosts are lost."""

import types

import pytest
from ansible_collections.sam_rl.ascend.plugins.action import follow_job

POLL = 10.0
READ = {"active": "active", "result": "success", "status": 0, "lines": [], "offset": 0, "free_gb": 1.0, "step": 0}
READ |= {"refused": [], "silent": []}


@pytest.fixture
def follow(monkeypatch):
    """A function that follows a job. Each state updates READ for one read; None means that the host gives no answer."""
    clock = [0.0]
    monkeypatch.setattr(follow_job.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(follow_job.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    def run(*states, **arguments):
        left = [state if state is None else {**READ, **state} for state in states]
        arguments = {"host": "h", "poll": POLL, "silence": 60, "timeout": 1000, "log": "l", "offset": 0, **arguments}
        plugin = follow_job.ActionModule.__new__(follow_job.ActionModule)
        plugin._task = types.SimpleNamespace(args=arguments)
        monkeypatch.setattr(follow_job.ActionBase, "run", lambda *_: {})
        monkeypatch.setattr(plugin, "_read_state", lambda *_: left.pop(0))
        end = plugin.run()
        return end["outcome"], end["lost"], clock[0] / POLL

    return run


def test_a_host_is_lost_without_an_answer_for_a_while_or_with_two_refusals(follow):
    """A network may fail for some seconds, but Ray is gone from a host that refuses connections twice in a row."""
    fine, silent, refused = {}, {"silent": ["b"]}, {"refused": ["b"]}
    assert follow(*[silent] * 6, fine, *[silent] * 7) == ("lost", ["b"], 13)
    assert follow(silent, refused, silent, refused, fine, refused, refused) == ("lost", ["b"], 19)
    assert follow({"silent": ["c"], "refused": ["b"]}, {"silent": ["c"], "refused": ["b"]}) == ("lost", ["b"], 20)
    failed = {"active": "failed", "result": "exit-code", "refused": ["a"], "silent": ["b"]}
    assert follow(silent, failed) == ("ended", ["a", "b"], 21)


def test_its_own_host_may_be_away_as_long(follow):
    assert follow(*[None] * 6, {}, *[None] * 7) == ("lost", ["h"], 13)
