# SPDX-License-Identifier: Apache-2.0
"""Which of several engines answers a request, so that the answers to one prompt share indexes and no engine is swamped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Server = TypeVar("Server")


class PromptRoutes:
    """Sticky on the prompt, with bounded imbalance.

    The answers to a prompt go to the server of those that run. A prompt without running answers returns to the server
    that had it last, whose history knows it, unless that has SLACK prompts' answers more in flight than the idlest: then
    it moves there, where new prompts go, too. So what is decided here makes servers differ by little more than SLACK
    prompts' answers; beyond that it is how long answers are. A prompt with more than SLACK * WHOLE answers in flight is
    spread. A later turn of a conversation stays where the first went.
    """

    SLACK = 2
    WHOLE = 32
    """Answers to a prompt that stay together under all circumstances, and most that count as one prompt's."""
    REMEMBERED = 100_000
    """Prompts and requests, the latest."""

    def __init__(self) -> None:
        self._homes: OrderedDict[int, Any] = OrderedDict()
        self._requests: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._running: dict[int, int] = {}

    def choose(self, request_id: str, prompt_ids: Sequence[int], in_flight: Mapping[Server, int]) -> Server:
        """The server for a request that begins; `in_flight` counts the requests of each, in order of preference."""
        prompt, server = self._requests.pop(request_id, (None, None))
        if prompt is None or server not in in_flight:
            prompt = hash(tuple(prompt_ids))
            server = self._homes.pop(prompt, None)
            idlest = min(in_flight, key=in_flight.__getitem__)
            largest = max(self._running.values(), default=1)
            if server not in in_flight or (
                self._running.get(prompt, 0) % self.WHOLE == 0
                and in_flight[server] - in_flight[idlest] >= self.SLACK * min(largest, self.WHOLE)
            ):
                server = idlest
            _remember(self._homes, prompt, server, self.REMEMBERED)
        _remember(self._requests, request_id, (prompt, server), self.REMEMBERED)
        self._running[prompt] = self._running.get(prompt, 0) + 1
        return server

    def homes(self, servers: Sequence[Server]) -> list[list[int]]:
        """Which prompt was at which server last, both as numbers that another process understands: for `return_home`."""
        number = {server: i for i, server in enumerate(servers)}
        return [[prompt, number[server]] for prompt, server in self._homes.items() if server in number]

    def return_home(self, homes: Sequence[Sequence[int]], servers: Sequence[Server]) -> None:
        """Take over what `homes` gave in an earlier process; those beyond the servers that there are now are left out."""
        for prompt, number in homes:
            if 0 <= number < len(servers):
                _remember(self._homes, prompt, servers[number], self.REMEMBERED)

    def ended(self, request_id: str) -> None:
        """A request that was chosen for has its answer, or will get none; others are ignored."""
        prompt, _ = self._requests.get(request_id, (None, None))
        if prompt in self._running:
            self._running[prompt] -= 1
            if not self._running[prompt]:
                del self._running[prompt]


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    known[key] = value
    if len(known) > most:
        known.popitem(last=False)
