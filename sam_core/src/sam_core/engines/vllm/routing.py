# SPDX-License-Identifier: Apache-2.0
"""Chooses the data-parallel engine of vLLM that serves a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sam_core.engines.routing import PromptRoutes, SavedRoutes
from sam_core.engines.vllm.groups import request_group
from sam_core.options import Options


class EngineRoutes:
    """Sends the requests of a group to one of the engines behind a client, by PromptRoutes.

    Engines are numbered as in the client's `core_engines` (vllm/v1/engine/core_client.py, DPLBAsyncMPClient), and their
    number may change. Only requests of this client are counted as in flight.

    Args:
        first: the engine to prefer among the least loaded ones, followed by the next ones in turn; differs by client.
        history: option `history`, a folder in which all clients save the engines of prompts.
    """

    def __init__(self, first: int = 0, history: str | None = None) -> None:
        self._first = first
        self._routes = PromptRoutes()
        self._saved = SavedRoutes(self._routes, Path(history, "routes.json") if history else None)
        self._num_engines = 0
        self._engines: dict[str, int] = {}
        self._in_flight: Counter[int] = Counter()

    @classmethod
    def from_options(cls, sam: Mapping[str, Any] | None, first: int) -> EngineRoutes | None:
        """Create it from valid options, `speculative_config["sam"]`; None if the answers to a prompt share no index."""
        sam = sam or {}
        return cls(first, sam.get("history")) if "group" in sam.get("sources", Options.sources) else None

    def choose(self, request: Any, num_engines: int) -> int | None:
        """The engine, 0 to num_engines - 1, for an EngineCoreRequest; None if it has neither a group nor tokens.

        A request that is in flight, as in a session with streamed input, stays on its engine. Call `sent` afterwards.
        """
        if (engine := self._engines.get(request.request_id)) is not None:
            return engine
        group = request_group(request)
        if group.key is None:
            return None
        if not self._num_engines:
            self._saved.restore(range(num_engines))
        self._num_engines = num_engines
        engines = ((self._first + i) % num_engines for i in range(num_engines))
        in_flight = {engine: self._in_flight[engine] for engine in engines}
        return self._routes.choose(request.request_id, group, in_flight)

    def sent(self, request_id: str, engine: int) -> None:
        """Record that a request goes to this engine, whoever chose it."""
        if request_id not in self._engines:
            self._engines[request_id] = engine
            self._in_flight[engine] += 1

    def ended(self, request_ids: Iterable[str]) -> None:
        """Requests have finished or were aborted; unknown ones are ignored."""
        for request_id in request_ids:
            if (engine := self._engines.pop(request_id, None)) is not None:
                self._in_flight[engine] -= 1
                self._routes.ended(request_id, has_later_turns=False)
        if not self._engines and self._num_engines:
            self._saved.save(range(self._num_engines))
