# SPDX-License-Identifier: Apache-2.0
"""An engine's answers are saved for later engines, and saving never gets in the way of requests."""

import errno
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from sam_core.corpus import build_corpus
from sam_core.engines.vllm.config import replica_history
from sam_core.files import lock
from sam_core.proposer import SamProposer

from sam_core import Pool, history

PROMPT, ANSWER = [1, 2, 3], [11, 12, 13, 14, 15, 16]
ROWS = np.zeros((1, 64), np.int32)
ROWS[0, :9] = PROMPT + ANSWER


def make(folder, **more):
    options = {"rule": "newest", "switch": "batch", "min_prob": 0, "history": str(folder)} | more.pop("sam", {})
    return SamProposer(3, options, max_model_len=64, **more)


def answer(proposer, name="a", end=True):
    """Answer the prompt token by token; return how many tokens of drafts from history were accepted."""
    before = proposer.stats()["accepted_history"]
    for length in range(3, 10):
        proposer.propose([name], ROWS, [length], [3], [True], 1)
    if end:
        proposer.finish([name])
        saved(proposer)
    return proposer.stats()["accepted_history"] - before


def saved(proposer):
    """Wait until nothing is being saved."""
    if proposer.texts.saved:
        proposer.texts.saved.wait()


@pytest.fixture(autouse=True)
def other_processes(monkeypatch):
    """Start each test as a process in which no engine holds a history folder."""
    monkeypatch.setattr(history, "_holders", weakref.WeakValueDictionary())


def end_process():
    history._holders.clear()


def test_history_is_found_again(tmp_path, caplog):
    folder = tmp_path / "of" / "a run"
    first = make(folder)
    assert answer(first, end=False) == 0
    assert not (folder / "engine-0/pool").exists(), "a request runs"
    first.finish(["a"])
    saved(first)
    assert sorted(path.name for path in (folder / "engine-0").iterdir()) == ["lock", "pool"]
    end_process()
    with caplog.at_level(logging.INFO):
        again = make(folder)
    assert "history: 1 answers to 1 prompts, 9 tokens" in caplog.text
    assert answer(again) > 3
    again.make_uniform()
    assert answer(again) > 3, "an engine with captured graphs finds it, too"


def busy(tmp_path, **more):
    """A proposer whose request "open" does not end, and which may save now."""
    proposer = make(tmp_path, **more)
    answer(proposer, "open", end=False)
    assert not proposer.texts.saved.busy_timer.due, "the first minute is over"
    proposer.texts.saved.busy_timer._next = 0
    return proposer


def test_an_engine_that_is_never_idle_saves_during_its_requests(tmp_path):
    """The engine also saves what its switch learned."""
    auto = {"sam": {"switch": "auto"}}
    proposer = busy(tmp_path, **auto)
    answer(proposer, "a")
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 1
    assert json.loads((tmp_path / "engine-0/switch.json").read_text()).keys() == {"cost", "calibration"}
    begin = time.monotonic() - 60
    answer(proposer, "b")
    assert begin < proposer.texts.saved.busy_timer._next - 60 <= time.monotonic()
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 1
    proposer.switch.calibration.observe(np.eye(2, 24))
    proposer.finish(["open"])
    saved(proposer)
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 3, "the last one ends: all is saved at once"
    end_process()
    second = make(tmp_path, **auto)
    assert second.switch.state() == proposer.switch.state() and second.switch.cost.fitted
    assert second.switch.calibration.counts.sum() > 1.9


def test_one_save_at_a_time(tmp_path, monkeypatch):
    """No call waits for the thread, not even the call that ends the last request. What it leaves is saved next, however
    the save before ended."""
    proposer, saves, begun, write_on = busy(tmp_path), [], threading.Event(), threading.Event()

    def write(pool, state):
        saves.append(threading.current_thread().name)
        begun.set()
        if len(saves) == 1:
            write_on.wait()
            raise RecursionError
        Pool.save(pool, proposer.texts.saved.texts)

    monkeypatch.setattr(proposer.texts.saved, "_write", write)
    for name in "ab":
        answer(proposer, name, end=False)
        proposer.finish([name])
        begun.wait()
    proposer.finish(["open"])
    thread = proposer.texts.saved._thread
    assert saves == ["sam-history"]
    write_on.set()
    thread.join()
    assert saves == 2 * ["sam-history"] and proposer.texts.saved._thread is None
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 3


def test_a_system_without_a_thread_to_spare(tmp_path, monkeypatch):
    """The engine's own thread saves, and nobody waits for a thread that has not started."""
    proposer, write = make(tmp_path), history.SavedHistory._write

    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr(history.SavedHistory, "_write", lambda *rest: (saved(proposer), write(*rest)))
    answer(proposer)
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 1


END = """
import sys, threading, time
import numpy as np
from sam_core.proposer import SamProposer
from sam_core.history import SavedHistory

write = SavedHistory._write
SavedHistory._write = lambda *arguments: (time.sleep(0.5), write(*arguments))

def engine():
    proposer = SamProposer(3, {"history": sys.argv[1]}, max_model_len=64)
    proposer.propose(["a"], np.arange(64, dtype=np.int32)[None], [9], [3], [True], 1)
    proposer.finish(["a"])

thread = threading.Thread(target=engine, daemon=True)
thread.start()
thread.join()
"""


def test_a_process_that_ends_saves_first(tmp_path):
    """The engine runs in a thread other than the main thread."""
    subprocess.run([sys.executable, "-c", END, str(tmp_path)], check=True)
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 1


def test_saving_takes_a_hundredth_of_the_time():
    clock = types.SimpleNamespace(now=100.0)
    timer = history.SaveTimer(clock=lambda: clock.now)
    assert timer.due
    timer.run(lambda: setattr(clock, "now", 102.0))
    clock.now = 301.9
    assert not timer.due
    clock.now = 302.1
    assert timer.due


def test_what_a_kill_left_is_removed(tmp_path):
    (tmp_path / "engine-0").mkdir()
    for name in (".pool-Ab12Cd", ".switch.json.77"):
        (tmp_path / "engine-0" / name).write_text("half of it")
    make(tmp_path)
    assert [path.name for path in (tmp_path / "engine-0").iterdir()] == ["lock"]


def test_a_loaded_pool_has_the_engines_settings(tmp_path, caplog):
    corpus = tmp_path / "corpus"
    build_corpus([[21, 22, 23, 24, 25, 26]], corpus)
    sam, pool = {"corpus": str(corpus), "memory_bytes": 1 << 20}, Pool(rule="newest")
    for i, row in enumerate(np.random.default_rng(0).integers(0, 1000, (64, 4096)).astype(np.int32)):
        slot = pool.open([i])
        pool.append(slot, row)
        pool.close(slot)
    (tmp_path / "engine-0").mkdir()
    pool.save(tmp_path / "engine-0/pool")
    smaller = make(tmp_path, sam=sam, logger=logging.getLogger("the engine"))
    assert smaller.texts.pool.stats()["memory_bytes"] == 1 << 20
    assert "of 64 prompts with their answers do not fit into memory_bytes" in caplog.records[-1].getMessage()
    assert caplog.records[-1].name == "the engine"
    row = np.array([[1, 21, 22, 23]], np.int32)
    assert smaller.propose(["new"], row, [4], [4], [True], 1) == [[24, 25, 26]], "the corpus is a source all the same"
    end_process()
    assert make(tmp_path, sam={"sources": ["common", "history", "group", "request"]} | sam), "in any order"


def test_replicas_have_folders_of_their_own():
    config = {"method": "sam", "sam": {"rule": "newest", "history": "/h"}}
    own = {"method": "sam", "sam": {"rule": "newest", "history": "/h/replica-3"}}
    unchanged = [None, "ngram", '{"method": "ngram"}', {"sam": 3}, {"sam": {"history": 3}}, {}]
    for given, expected in ((config, own), (json.dumps(config), own), *((same, same) for same in unchanged)):
        replica_history(args := {"speculative_config": given}, 3)
        assert args == {"speculative_config": expected}
    assert config["sam"]["history"] == "/h"


HOLD = "import sys, pathlib, sam_core.files as f; f.lock(pathlib.Path(sys.argv[1]), 60); print(flush=True); input()"
FORK_OF_ENGINE = """
import os, sys, time, sam_core.history as h
from sam_core.proposer import SamProposer
h.LOCK_TIMEOUT_S = 0.2
def make():
    return SamProposer(3, {"history": sys.argv[1]}, max_model_len=64)
def told():
    try:
        make()
        print("not in use", flush=True)
    except ValueError as e:
        print("in use" if "in use by another engine" in str(e) else e, flush=True)
engine = make()
if not (child := os.fork()):
    told()
    engine = None
    os._exit(0)
os.waitpid(child, 0)
if not os.fork():
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
os.wait()
print(os.fork() or time.sleep(60), flush=True)
"""
OTHER_ENGINE = FORK_OF_ENGINE.partition("engine = make()")[0] + "told()"


def test_an_engine_waits_for_the_one_before_it(tmp_path):
    (tmp_path / "engine-0").mkdir()
    path = (tmp_path / "engine-0/lock").resolve()
    run = [sys.executable, "-c", HOLD, path]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"\n"
        threading.Timer(0.3, holder.kill).start()
        assert make(tmp_path).texts.saved


def test_a_second_engine_of_this_process(tmp_path):
    first = make(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^history '{tmp_path}' is in use by another engine: end that one, or"):
            make(tmp_path)
    other = make(tmp_path, rank=1)
    assert answer(first) == answer(other) == answer(make(tmp_path, rank=2, drafting=False)) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"engine-0", "engine-1"}
    for folder in ("engine-0", "engine-1"):
        assert Pool.describe(tmp_path / folder / "pool")["texts"] == 1


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_one_engine_may_build_its_proposer_twice(tmp_path, in_a_cycle):
    engine = types.SimpleNamespace(drafter=make(tmp_path))
    if in_a_cycle:
        engine.drafter.engine = engine
        engine = types.SimpleNamespace()
    engine.drafter = None
    engine.drafter = make(tmp_path)
    answer(engine.drafter)
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 1


def test_the_lock_is_that_of_the_process_that_made_the_engine(tmp_path):
    """A forked child with a copy of the engine cannot use the folder. It neither releases nor keeps the lock."""
    run = [sys.executable, "-c", FORK_OF_ENGINE, str(tmp_path), OTHER_ENGINE]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as engine:
        assert [engine.stdout.readline() for _ in range(2)] == 2 * ["in use\n"]
        child = int(engine.stdout.readline())
        assert engine.wait() == 0
        os.close(lock((tmp_path / "engine-0/lock").resolve(), 20))
        os.kill(child, signal.SIGKILL)


OLDER = b"sampool\0" + struct.pack("<II", 2, 0x01020304) + bytes(64)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("engine-0/pool", OLDER, "is from another version of sam_core: load it there, or start with a new pool; an "),
        ("engine-0/switch.json", b"{", "cannot be used (Expecting property name"),
        ("engine-0/switch.json", b"{}", "cannot be used (this is not a record of a switch): remove it"),
    ],
)
def test_a_foreign_file_is_one_sentence_that_names_it(tmp_path, name, content, sentence):
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ValueError) as error:
        make(tmp_path, sam={"switch": "auto"})
    assert str(path) in str(error.value) and sentence in str(error.value) and "\n" not in str(error.value)
    assert path.read_bytes() == content
    with pytest.raises(ValueError, match=r"/folder' cannot be used \(Not a directory\): name a folder that can be"):
        make(path / "folder")


def test_a_folder_of_another_setting_or_model(tmp_path):
    answer(make(tmp_path, vocab_size=1000))
    for other, sentence in (
        ({"sam": {"rule": "blend"}}, "was saved with rule newest and sources .*: use the same, or"),
        ({"vocab_size": 2000}, "is of a vocabulary of 1000 tokens, but the model's has 2000"),
    ):
        end_process()
        with pytest.raises(ValueError, match=f"engine-0/pool'? {sentence}"):
            make(tmp_path, **other)


USERS_OF_LOCKS = """
import logging, pathlib, sys, sam_core.history as h
from sam_core.engines.routing import PromptRoutes, SavedRoutes
from sam_core.options import Options
logging.basicConfig(format="%(message)s", stream=sys.stdout)
try:
    h.SavedHistory(Options(history=sys.argv[1]), 0, logging.getLogger())
except ValueError as e:
    print(e)
routes = SavedRoutes(PromptRoutes(), pathlib.Path(sys.argv[1], "routes.json"))
routes.save([])
routes.wait()
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks(tmp_path, no_locks, number):
    words = [sys.executable, "-c", USERS_OF_LOCKS, tmp_path]
    done = subprocess.run(words, env=os.environ | no_locks(tmp_path, number), capture_output=True, text=True)
    said = f"is on a file system without locks ({os.strerror(number)}): have it mounted with locks (Lustre: option"
    history, routes = done.stdout.splitlines()
    assert history.startswith(f"{tmp_path}/engine-0 {said}"), done
    assert routes.startswith(f"routes were not saved to {tmp_path}/routes.json ({tmp_path} {said}")


@pytest.mark.parametrize(("place", "number"), [("mkdir", errno.EROFS), ("_check_folder", errno.ENOSPC)])
def test_a_disk_that_is_full_at_the_start(tmp_path, monkeypatch, caplog, place, number):
    """The engine drafts from what was saved, and saves as soon as it can."""
    answer(make(tmp_path))
    end_process()
    caplog.clear()

    def fail(*arguments, **more):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as full:
        full.setattr(*(Path, place) if place == "mkdir" else (history.SavedHistory, place), fail)
        proposer = make(tmp_path)
        assert answer(proposer) > 3
    once = f"history cannot be saved to {tmp_path}/engine-0 ({os.strerror(number)}); trying again later"
    again = f"history was not saved to {tmp_path}/engine-0 ([Errno {number}] {os.strerror(number)}); trying again later"
    for due in (False, True):
        assert caplog.messages == [once, again] and Pool.describe(tmp_path / "engine-0/pool")["texts"] == 1
        proposer.texts.saved.timer._next *= not due
        proposer.finish([])
        saved(proposer)
    assert Pool.describe(tmp_path / "engine-0/pool")["texts"] == 2 and len(history._holders) == 1
