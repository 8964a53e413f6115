# SPDX-License-Identifier: Apache-2.0
"""An engine's history on disk, so that a run that is started again drafts from what it had answered before."""

from __future__ import annotations

import fcntl
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sam_core import Pool
from sam_core.files import write_json
from sam_core.options import Options
from sam_core.switch import AutoSwitch

SHARE = 0.01
"""Most of the time that saving may take."""

BUSY_S = 60.0
"""Least seconds from one save to the next while requests run."""

RETRY_S = 60.0
"""Least seconds from a failure to save to the next attempt."""

PATIENCE_S = 60.0
"""How long an engine waits for the one before it, which may still be ending."""

_held: dict[Path, Any] = {}
"""Locks of this process, held to its end; an engine may build its proposer twice."""


class Seldom:
    """Tells when something may be saved again, so that saving takes at most SHARE of the time.

    least: seconds from the start, and from one time to the next, at least.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, least: float = 0.0) -> None:
        self.clock, self.least = clock, least
        self._due = clock() + least

    @property
    def due(self) -> bool:
        return self.clock() >= self._due

    def did(self, save: Callable[[], None]) -> None:
        """Save, and measure it; raises what `save` raises."""
        start = self.clock()
        try:
            save()
        except BaseException:
            self._due = self.clock() + RETRY_S
            raise
        end = self.clock()
        self._due = end + max(self.least, (end - start) / SHARE)


class SavedHistory:
    """One engine's files in the folder `options.history`: the pool's texts, and what switch `auto` learned.

    `engine-<rank>/pool` is what Pool.save writes, `engine-<rank>/switch.json` the state of the switch. Each is replaced
    whole. They are written when no request runs, and seldom; while requests run, by a thread, and more seldom.

    Args:
        options: with `history`.
        rank: of the engine among those that use the folder.
        logger: says what was loaded, and why something was not saved.
        vocab_size, tokenizer: of the model, as for Pool.

    Raises:
        ValueError: one sentence: the folder cannot be used, another engine uses it, or it holds what is none of this
            engine's.
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
        self.logger = logger
        self.model = {"vocab_size": vocab_size, "tokenizer": tokenizer}
        self.seldom, self.seldom_busy = Seldom(), Seldom(least=BUSY_S)
        self._thread: threading.Thread | None = None
        self.folder = Path(options.history) / f"engine-{rank}"
        self.texts = self.folder / "pool"
        self.learned = self.folder / "switch.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _hold(self.folder.resolve() / "lock")
            for left_by_a_kill in (*self.folder.glob(".pool-*"), *self.folder.glob(".switch.json.*")):
                left_by_a_kill.unlink()
            self._try_out()
        except BlockingIOError:
            raise ValueError(
                f"history {options.history!r} is in use by another engine: end that one, or name another folder"
            ) from None
        except OSError as e:
            raise ValueError(
                f"history {options.history!r} cannot be used ({e.strerror}): name a folder that can be written"
            ) from None

    def _try_out(self) -> None:
        """Some file systems force a mode or an owner that Pool.load refuses: to be known now, not when a run goes on."""
        trial = self.folder / ".pool-trial"
        try:
            Pool(1 << 20).save(trial)
            Pool.describe(trial)
        except ValueError as e:
            raise ValueError(f"history {self.options.history!r} cannot be used: what is saved there is {e}") from None
        finally:
            trial.unlink(missing_ok=True)

    def load(self) -> Pool | None:
        """A pool with the saved texts, None where nothing was saved yet; ValueError, one sentence, where they are foreign."""
        options = self.options
        try:
            pool = Pool.load(self.texts, options.memory_bytes, options.corpus, options.min_prob, **self.model)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise ValueError(f"{self.texts} cannot be read ({e.strerror}): make it readable, or move it away") from None
        if pool.rule != options.rule or set(pool.sources) != set(options.sources):
            raise ValueError(
                f"{self.texts} was saved with rule {pool.rule} and sources {', '.join(pool.sources)}: "
                "go on with those, or name another folder as history"
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

    def teach(self, switch: AutoSwitch) -> None:
        """Give the switch what it had learned, if that was saved; ValueError, one sentence, where it is damaged."""
        try:
            switch.take_over(json.loads(self.learned.read_text()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as e:
            raise ValueError(f"{self.learned} cannot be used ({e}): remove it") from None

    def save(self, pool: Pool, switch: AutoSwitch | None) -> bool:
        """Save, unless that was done or failed a short while ago; whether it was. For when no request runs.

        A failure is logged, and the old files stay: the engine goes on.
        """
        if not self.seldom.due:
            return False
        if self._thread:
            self._thread.join()
        return self._save(self.seldom, pool, switch.state() if switch else None)

    def save_busy(self, pool: Pool, switch: AutoSwitch | None) -> bool:
        """Let a thread save while requests run, unless one does or did a short while ago; whether one has begun.

        The caller does not wait for it, and the pool's other users only while texts are listed. A failure is logged.
        """
        if self._thread and self._thread.is_alive() or not self.seldom_busy.due:
            return False
        state = switch.state() if switch else None
        self._thread = threading.Thread(target=self._save, args=(self.seldom_busy, pool, state), name="sam-history")
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread to spare
            self._thread = None
            return self._save(self.seldom_busy, pool, state)
        return True

    def _save(self, seldom: Seldom, pool: Pool, state: dict[str, Any] | None) -> bool:
        try:
            seldom.did(lambda: self._write(pool, state))
        except (OSError, MemoryError) as e:
            self.logger.warning("history was not saved to %s (%s); trying again later", self.folder, e)
            return False
        return True

    def _write(self, pool: Pool, state: dict[str, Any] | None) -> None:
        pool.save(self.texts)
        if state is not None:
            write_json(self.learned, state)


def _hold(path: Path) -> None:
    """Lock a file until this process ends; a child that it forks does not hold it."""
    if path in _held:
        return
    lock, end = open(path, "w"), time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.1)
    except OSError:
        lock.close()
        raise
    _held[path] = lock
