# SPDX-License-Identifier: Apache-2.0
"""What an engine answered outlives it, and never gets in its way."""

import json
import logging
import subprocess
import sys
import threading

import numpy as np
import pytest
from sam_core.options import replica_history
from sam_core.proposer import SamProposer

from sam_core import Pool, history

PROMPT, ANSWER = [1, 2, 3], [11, 12, 13, 14, 15, 16]
ROWS = np.zeros((1, 64), np.int32)
ROWS[0, :9] = PROMPT + ANSWER


def make(folder, **more):
    options = {"rule": "newest", "min_prob": 0, "history": str(folder)} | more.pop("sam", {})
    return SamProposer(3, options, max_model_len=64, **more)


def answer(proposer, name="a", end=True):
    """An engine answers the prompt token by token; how many tokens came true of the drafts that began in history."""
    before = proposer.stats()["accepted_history"]
    for length in range(3, 10):
        proposer.propose([name], ROWS, [length], [3], [True])
    if end:
        proposer.finish([name])
    return proposer.stats()["accepted_history"] - before


@pytest.fixture(autouse=True)
def other_processes(monkeypatch):
    """Each proposer is that of a process which has ended when the next one is made."""
    monkeypatch.setattr(history, "_held", {})


def end_process():
    for lock in history._held.values():
        lock.close()
    history._held.clear()


def test_history_is_found_again(tmp_path, caplog):
    folder = tmp_path / "of" / "a run"
    assert answer(make(folder)) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["engine-0.lock", "engine-0.pool"]
    end_process()
    with caplog.at_level(logging.INFO):
        again = make(folder)
    assert "history: 1 answers to 1 prompts, 9 tokens" in caplog.text
    assert answer(again) > 3
    again.make_uniform()
    assert answer(again) > 3, "an engine with captured graphs finds it, too"


def test_it_is_written_only_when_no_request_runs(tmp_path):
    proposer = make(tmp_path)
    answer(proposer, "a", end=False)
    answer(proposer, "b", end=False)
    proposer.finish(["a"])
    assert not (tmp_path / "engine-0.pool").exists()
    proposer.finish(["b"])
    assert Pool.describe(tmp_path / "engine-0.pool")["texts"] == 2


def test_it_is_not_written_again_when_nothing_was_added(tmp_path):
    proposer = make(tmp_path)
    answer(proposer)
    (tmp_path / "engine-0.pool").unlink()
    proposer.saved.seldom._due = 0
    proposer.finish([])
    assert not (tmp_path / "engine-0.pool").exists()


def test_saving_takes_a_hundredth_of_the_time():
    now = [100.0]
    seldom = history.Seldom(clock=lambda: now[0])

    def save():
        now[0] += 2

    assert seldom.due
    seldom.did(save)
    now[0] += 199.9
    assert not seldom.due
    now[0] += 0.2
    assert seldom.due


def test_what_was_too_soon_is_saved_later(tmp_path):
    proposer = make(tmp_path)
    answer(proposer, "a")
    proposer.saved.seldom._due = float("inf")
    answer(proposer, "b")
    assert Pool.describe(tmp_path / "engine-0.pool")["texts"] == 1
    proposer.saved.seldom._due = 0
    proposer.finish([])
    assert Pool.describe(tmp_path / "engine-0.pool")["texts"] == 2


def test_a_failure_is_logged_and_the_engine_goes_on(tmp_path, caplog):
    proposer = make(tmp_path)
    (tmp_path / "engine-0.pool").mkdir()
    answer(proposer)
    assert f"history was not saved to {tmp_path}: Is a directory" in caplog.text
    assert answer(proposer) > 3


def test_what_auto_learned_is_saved_with_it(tmp_path):
    auto = {"sam": {"switch": "auto"}}
    first = make(tmp_path, **auto)
    for i in range(4):
        answer(first, str(i))
    end_process()
    first.saved.seldom._due = 0
    answer(first, "last")
    assert first.switch.cost.fitted
    second = make(tmp_path, **auto)
    assert second.switch.state() == first.switch.state() and second.switch.cost.fitted


def test_ranks_that_do_not_draft_touch_nothing(tmp_path):
    answer(make(tmp_path / "new", drafting=False))
    assert not (tmp_path / "new").exists()


def test_engines_have_files_of_their_own(tmp_path):
    answer(make(tmp_path))
    assert answer(make(tmp_path, rank=1)) == 0
    assert {path.name for path in tmp_path.glob("*.pool")} == {"engine-0.pool", "engine-1.pool"}
    args = {"seed": 1, "speculative_config": {"method": "sam", "sam": {"rule": "newest", "history": "/h"}}}
    mine = dict(args)
    replica_history(mine, 3)
    assert mine["speculative_config"] == {"method": "sam", "sam": {"rule": "newest", "history": "/h/replica-3"}}
    assert args["speculative_config"]["sam"]["history"] == "/h"
    for other in ({}, {"speculative_config": None}, {"speculative_config": {"method": "sam", "sam": None}}):
        same = dict(other)
        replica_history(same, 3)
        assert same == other


HOLD = "import sys, pathlib, sam_core.history as h; h._hold(pathlib.Path(sys.argv[1])); print(flush=True); input()"


def test_a_folder_that_another_engine_uses(tmp_path):
    lock = (tmp_path / "engine-0.lock").resolve()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        threading.Timer(60, holder.kill).start()
        assert holder.stdout.readline() == "\n"
        with pytest.raises(ValueError, match=f"^history '{tmp_path}' is in use by another engine: end that one, or"):
            make(tmp_path)
        holder.communicate("\n")
    make(tmp_path)


def test_one_engine_may_build_its_proposer_twice(tmp_path):
    first, second = make(tmp_path), make(tmp_path)
    assert first.saved and second.saved


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("engine-0.pool", b"x" * 100, "is no"),
        ("engine-0.switch.json", b"{", "cannot be used (Expecting property name"),
        ("engine-0.switch.json", b"{}", "cannot be used (this is no record of a switch): remove it"),
    ],
)
def test_a_foreign_file_is_one_sentence_that_names_it(tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ValueError) as error:
        make(tmp_path, sam={"switch": "auto"})
    assert str(path) in str(error.value) and sentence in str(error.value) and "\n" not in str(error.value)
    assert path.read_bytes() == content


def test_a_folder_of_another_setting(tmp_path):
    answer(make(tmp_path))
    with pytest.raises(
        ValueError, match="engine-0.pool was saved with rule newest and sources .*: go on with those, or"
    ):
        make(tmp_path, sam={"rule": "blend"})
    with pytest.raises(ValueError, match="was saved with"):
        make(tmp_path, sam={"sources": ["group", "history"]})


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text(json.dumps(1))
    with pytest.raises(ValueError, match=r"file/folder' cannot be used \(Not a directory\): name a folder that can be"):
        make(tmp_path / "file" / "folder")
