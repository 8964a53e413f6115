# SPDX-License-Identifier: Apache-2.0
"""An engine's history on disk, so that a restarted run drafts from its earlier answers."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sam_core import Pool
from sam_core.files import lock, write_json
from sam_core.options import Options
from sam_core.switch import Switch

MAX_SAVING_SHARE = 0.01
"""Maximum share of the time spent saving."""

MIN_BUSY_INTERVAL_S = 60.0
"""Minimum seconds between two saves while requests run."""

RETRY_S = 60.0
"""Minimum seconds from a failed save to the next attempt."""

LOCK_TIMEOUT_S = 60.0
"""Seconds that an engine waits for the previous one, which may still be shutting down."""

NOT_NOW = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a folder that can be read, and perhaps written later: the engine starts, and tries again when it saves."""


class SaveTimer:
    """Tells when to save again, so that saving takes at most MAX_SAVING_SHARE of the time.

    Args:
        clock: seconds, monotonic.
        min_interval: minimum seconds from the start to the first save and between two saves.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, min_interval: float = 0.0) -> None:
        self.clock, self.min_interval = clock, min_interval
        self._next = clock() + min_interval

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return self.clock() >= self._next

    def run(self, save: Callable[[], None]) -> None:
        """Call `save`, and set the time of the next one by how long it took; raises what `save` raises."""
        start = self.clock()
        try:
            save()
        except BaseException:
            self._next = self.clock() + RETRY_S
            raise
        end = self.clock()
        self._next = end + max(self.min_interval, (end - start) / MAX_SAVING_SHARE)


class LatestSaver:
    """Saves the latest state in a thread. Callers do not wait for it; the process waits at exit. Failures are logged.

    failed: whether the latest save failed.

    Args:
        thread: its name.
        said: beginning of a warning, which the cause follows.
    """

    def __init__(self, thread: str, logger: logging.Logger, said: str) -> None:
        self.logger, self.failed = logger, False
        self._name, self._said = thread, said
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next: Callable[[], None] | None = None

    def wait(self) -> None:
        """Wait until the latest state is saved, or saving it has failed."""
        if thread := self._thread:
            thread.join()

    def _begin(self, timer: SaveTimer, write: Callable[..., None], *state: Any) -> None:
        """Have the thread call `write(*state)` after its current call, in place of any call that was to follow."""
        with self._lock:
            self._next = functools.partial(timer.run, functools.partial(write, *state))
            if self._thread:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=False)
            with contextlib.suppress(RuntimeError):  # the system has no thread to spare
                thread.start()
                self._thread = thread
                return
        self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                save, self._next = self._next, None
                if save is None:
                    self._thread = None
                    return
            self.failed = False
            try:
                save()
            except Exception as e:
                self.logger.warning("%s (%s); trying again later", self._said, e)
                self.failed = True


class SavedHistory(LatestSaver):
    """One engine's files in the folder `options.history`: the pool's texts, and what switch `auto` learned.

    `engine-<rank>/pool` is what Pool.save writes, `engine-<rank>/switch.json` the state of the switch. A thread
    replaces each as a whole: when no request runs, and less often while requests run. See SaveTimer.

    Args:
        options: with `history`.
        rank: the engine's number among those that use the folder.
        logger: reports what was loaded, and why something was not saved.
        vocab_size, tokenizer: those of the model, see Pool.

    Raises:
        ValueError: one sentence: the folder cannot be used, or another engine uses it. A full disk is only a warning.
    """

    def __init__(
        self,
        options: Options,
        rank: int,
        logger: logging.Logger,
        vocab_size: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        assert options.history is not None
        self.options = options
        self.model: dict[str, Any] = {"vocab_size": vocab_size, "tokenizer": tokenizer}
        self.timer, self.busy_timer = SaveTimer(), SaveTimer(min_interval=MIN_BUSY_INTERVAL_S)
        self.folder = Path(options.history) / f"engine-{rank}"
        super().__init__("sam-history", logger, f"history was not saved to {self.folder}")
        self.texts = self.folder / "pool"
        self.switch_state = self.folder / "switch.json"
        self._prepared = False
        try:
            self._prepare()
        except BlockingIOError:
            raise ValueError(
                f"history {options.history!r} is in use by another engine: end that one, or name another folder"
            ) from None
        except OSError as e:
            if e.errno not in NOT_NOW:
                raise ValueError(
                    f"history {options.history!r} cannot be used ({e.strerror}): name a folder that can be written"
                ) from None
            logger.warning("history cannot be saved to %s (%s); trying again later", self.folder, e.strerror)

    def _prepare(self) -> None:
        """Create the folder and lock it for this engine."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hold()
        for partial in (*self.folder.glob(".pool-*"), *self.folder.glob(".switch.json.*")):
            partial.unlink()
        self._check_folder()
        self._prepared = True

    def _hold(self) -> None:
        """Lock the folder until this object is freed: an engine may build its proposer twice, and keep the second.

        A lock belongs to a process; `_holders` tells which object of the process has it. A forked child has no lock.
        """
        path = self.folder.resolve() / "lock"
        if (holder := _holders.get((os.getpid(), path))) is self:
            return
        if holder is not None:
            saving = holder._thread
            del holder
            gc.collect()  # an engine that has ended may be in a cycle
            if saving is not None:
                saving.join()
        if (os.getpid(), path) in _holders:
            raise BlockingIOError
        weakref.finalize(self, os.close, lock(path, LOCK_TIMEOUT_S))
        _holders[os.getpid(), path] = self

    def _check_folder(self) -> None:
        """Fail now, not when a run resumes, if the file system forces a mode or an owner that Pool.load refuses."""
        trial = self.folder / ".pool-trial"
        try:
            Pool(1 << 20).save(trial)
            Pool.describe(trial)
        except ValueError as e:
            raise ValueError(f"history {self.options.history!r} cannot be used: what is saved there is {e}") from None
        finally:
            trial.unlink(missing_ok=True)

    def load(self) -> Pool | None:
        """A pool with the saved texts; None if there are none.

        Raises ValueError, one sentence, if this engine cannot use them.
        """
        options = self.options
        try:
            pool = Pool.load(self.texts, options.memory_bytes, options.corpus, options.pool_min_prob, **self.model)
        except FileNotFoundError:
            return None
        except ValueError as e:
            if not str(e).startswith(f"{str(self.texts)!r} is "):
                raise
            raise ValueError(f"{e}; an engine starts without it if you move it away") from None
        except OSError as e:
            raise ValueError(f"{self.texts} cannot be read ({e.strerror}): make it readable, or move it away") from None
        if pool.rule != options.rule or set(pool.sources) != set(options.sources):
            raise ValueError(
                f"{self.texts} was saved with rule {pool.rule} and sources {', '.join(pool.sources)}: "
                "use the same, or name another folder as history"
            )
        stats = pool.stats()
        self.logger.info(
            "history: %d answers to %d prompts, %d tokens, from %s",
            stats["history_texts"],
            stats["groups"],
            stats["history_tokens"],
            self.texts,
        )
        if stats["evicted_groups"]:
            self.logger.warning(
                "history: %d of %d prompts with their answers do not fit into memory_bytes and will be left out",
                stats["evicted_groups"],
                stats["evicted_groups"] + stats["groups"],
            )
        return pool

    def restore_switch(self, switch: Switch) -> None:
        """Restore what the switch had learned, if that was saved. Raises ValueError, one sentence, if it is damaged."""
        if switch.state() is None:
            return
        try:
            switch.restore(json.loads(self.switch_state.read_text()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as e:
            raise ValueError(f"{self.switch_state} cannot be used ({e}): remove it") from None

    def save(self, pool: Pool, switch: Switch, idle: bool) -> bool:
        """Have the thread save if a save is due; returns whether it will.

        Other users of the pool wait only while texts are listed. A failure leaves the old files in place.

        Args:
            idle: whether no request runs. If some run, a save is due at most every MIN_BUSY_INTERVAL_S, and not while
                the thread saves.
        """
        timer = self.timer if idle else self.busy_timer
        if not timer.due or self._thread and not idle:
            return False
        self._begin(timer, self._write, pool, switch.state())
        return True

    def _write(self, pool: Pool, state: dict[str, Any] | None) -> None:
        if not self._prepared:
            self._prepare()
        pool.save(self.texts)
        if state is not None:
            write_json(self.switch_state, state)


_holders: weakref.WeakValueDictionary[tuple[int, Path], SavedHistory] = weakref.WeakValueDictionary()
"""The holder of each lock, by process and file."""
