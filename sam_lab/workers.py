# SPDX-License-Identifier: Apache-2.0
"""Processes that share the work of a command."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any


def finished(
    call: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], processes: int | None
) -> Iterator[tuple[Any, Future]]:
    """Call `call(*job)` for each job in new processes; yields each job and its future as it ends.

    The processes end when the loop over the results ends or is left early, and when this process ends or is killed.
    """
    fresh = multiprocessing.get_context("spawn")  # numba's threads do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(processes, fresh, _end_with_parent) as pool:
        try:
            # Ctrl-C reaches all processes of a terminal: only this one handles it, the others inherit the mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = {pool.submit(call, *job): job for job in jobs}
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _end_with_parent() -> None:
    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
