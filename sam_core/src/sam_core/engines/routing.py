# SPDX-License-Identifier: Apache-2.0
"""Chooses the engine for each request, so that the answers to a prompt share indexes and load stays balanced."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sam_core.files import lock, write_json
from sam_core.groups import Group
from sam_core.history import LOCK_TIMEOUT_S, LatestSaver, SaveTimer

logger = logging.getLogger(__name__)

Server = TypeVar("Server")


class PromptRoutes:
    """Routing that is sticky per prompt, with bounded imbalance.

    A request goes to the server that runs other answers to its prompt. A new prompt goes to the least loaded server. A
    prompt without running answers returns to its previous server, whose history has it, unless that server has the
    answers to SLACK prompts more in flight than the least loaded one. So routing makes servers differ by little more
    than the answers to SLACK prompts; the rest is due to the lengths of answers. A prompt with more than
    SLACK * MAX_GROUP answers in flight is spread over servers. All turns of a conversation stay on one server.

    A server is a replica of verl or a data-parallel engine of vLLM.
    """

    SLACK = 2
    """A server may exceed the least loaded one by the answers to this number of prompts."""
    MAX_GROUP = 32
    """Number of answers to a prompt that stay together, and maximum that counts as the answers to one prompt."""
    MAX_REMEMBERED = 100_000
    """Number of the latest prompts and requests that are remembered."""

    def __init__(self) -> None:
        self._homes: OrderedDict[int, Any] = OrderedDict()
        self._requests: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._running: dict[int, int] = {}

    def choose(self, request_id: str, group: Group | Sequence[int], in_flight: Mapping[Server, int]) -> Server:
        """The server for a new request.

        Args:
            group: its group, or the tokens of its prompt.
            in_flight: the number of running requests per server, with servers in order of preference.
        """
        prompt: int
        server: Any
        if known := self._requests.pop(request_id, None):
            prompt, server = known
        else:
            prompt, server = (group if isinstance(group, Group) else Group(group)).number, None
        if server not in in_flight:
            server = self._homes.pop(prompt, None)
            least_loaded = min(in_flight, key=in_flight.__getitem__)
            largest = max(self._running.values(), default=1)
            if server not in in_flight or (
                self._running.get(prompt, 0) % self.MAX_GROUP == 0
                and in_flight[server] - in_flight[least_loaded] >= self.SLACK * min(largest, self.MAX_GROUP)
            ):
                server = least_loaded
            _remember(self._homes, prompt, server, self.MAX_REMEMBERED)
        _remember(self._requests, request_id, (prompt, server), self.MAX_REMEMBERED)
        self._running[prompt] = self._running.get(prompt, 0) + 1
        chosen: Server = server
        return chosen

    def homes(self, servers: Sequence[Server]) -> list[list[int]]:
        """Pairs [number of a group, index of its latest server in `servers`], for `return_home`."""
        index = {server: i for i, server in enumerate(servers)}
        return [[prompt, index[server]] for prompt, server in self._homes.items() if server in index]

    def return_home(self, homes: Sequence[Sequence[int]], servers: Sequence[Server]) -> None:
        """Restore what `homes` returned in an earlier process, except for servers that no longer exist."""
        for prompt, i in homes:
            if 0 <= i < len(servers):
                _remember(self._homes, prompt, servers[i], self.MAX_REMEMBERED)

    def forget_servers(self) -> None:
        """Let requests continue on another server than before: the one that serves other answers to their prompt."""
        self._requests = OrderedDict((request_id, (prompt, None)) for request_id, (prompt, _) in self._requests.items())

    def ended(self, request_id: str, has_later_turns: bool = True) -> None:
        """A request has finished or failed; unknown ones are ignored. A later turn is a request with the same id."""
        find = self._requests.get if has_later_turns else self._requests.pop
        prompt, _ = find(request_id, (None, None))
        if prompt in self._running:
            self._running[prompt] -= 1
            if not self._running[prompt]:
                del self._running[prompt]


_writing = threading.Lock()
"""Excludes other threads; the file lock excludes only other processes."""


class SavedRoutes(LatestSaver):
    """A file that lets a restarted run send prompts to the servers that have their history.

    Several processes may share it: each adds the homes that it chose. Servers are identified by their order. A thread
    writes the file, so that a busy disk or another process delays no request. If the file cannot be read or written, a
    warning is logged.

    Args:
        routes: the routes to save and restore.
        path: the file; None: nothing is saved.
    """

    def __init__(self, routes: PromptRoutes, path: Path | None) -> None:
        super().__init__("sam-routes", logger, f"routes were not saved to {path}")
        self._routes, self._path = routes, path
        self._timer = SaveTimer()
        self._known: dict[int, int] = {}  # what this process has read or written

    def restore(self, servers: Sequence[Any]) -> None:
        """Restore the routes, once the servers are known."""
        try:
            if self._path:
                self._known = _read(self._path)
                self._routes.return_home([*self._known.items()], servers)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as e:
            logger.warning("%s cannot be used (%s): prompts are routed without it", self._path, e)

    def save(self, servers: Sequence[Any]) -> None:
        """Save the routes if a save is due; call it when no request is in flight.

        Saving takes at most 1 % of the time, so not every call saves, and none while the thread is saving.
        """
        if self._path and not self._thread and self._timer.due:
            homes = {prompt: home for prompt, home in self._routes.homes(servers)}
            self._begin(self._timer, self._write, self._path, homes)

    def _write(self, path: Path, ours: dict[int, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _writing:
            locked = lock(path.with_name(f".{path.name}.lock"), LOCK_TIMEOUT_S)
            try:
                self._merge(path, ours)
            finally:
                os.close(locked)

    def _merge(self, path: Path, ours: dict[int, int]) -> None:
        theirs: dict[int, int] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            theirs = _read(path)
        for prompt in ours.keys() & theirs.keys():
            if ours[prompt] == self._known.get(prompt):  # unchanged here, so another process may have moved it
                ours[prompt] = theirs[prompt]
        self._known = {prompt: home for prompt, home in theirs.items() if prompt not in ours} | ours
        write_json(path, [*self._known.items()][-PromptRoutes.MAX_REMEMBERED :])


def _read(path: Path) -> dict[int, int]:
    """The home of each prompt, the latest last; raises OSError or ValueError."""
    try:
        return {int(prompt): int(home) for prompt, home in json.loads(path.read_text())}
    except (TypeError, OverflowError, RecursionError) as e:
        raise ValueError(e) from None


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any, max_entries: int) -> None:
    memory[key] = value
    if len(memory) > max_entries:
        memory.popitem(last=False)
