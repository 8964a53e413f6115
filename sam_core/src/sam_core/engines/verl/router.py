# SPDX-License-Identifier: Apache-2.0
"""A router for verl that sends the answers to a prompt to one replica, where they share a group index.

verl's own balancer is sticky per request id, which is new for every sample, so it separates the answers to a prompt.
With method sam this router is used unless the user names another; router.yaml selects it as
`actor_rollout_ref.rollout.router_config_path`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl.workers.rollout.router import GlobalRequestLoadBalancer

from sam_core.engines.routing import PromptRoutes, SavedRoutes


class PromptRouter(GlobalRequestLoadBalancer):
    """verl's balancer with PromptRoutes choosing the replica.

    If the environment variable SAM_ROUTES names a file, a restarted run sends prompts to the replicas that have their
    history. Replicas are identified by the order in which verl lists them.
    """

    def __init__(self, servers: Mapping[str, Any], config: Any = None, **settings: Any) -> None:
        super().__init__(servers, **settings)
        self._routes = PromptRoutes()
        self._replicas = list(servers)
        file = os.environ.get("SAM_ROUTES")
        self._saved = SavedRoutes(self._routes, Path(file) if file else None)
        if self._replicas:
            self._saved.restore(self._replicas)

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        super().add_servers(servers)
        first = not self._replicas
        self._replicas += [server for server in servers if server not in self._replicas]
        if first:
            self._saved.restore(self._replicas)

    def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids"]

    def require_release_fields(self) -> list[str]:
        return ["request_id"]

    def acquire_server(self, request_id: str, prompt_ids: Sequence[int] | None = None) -> Any:
        if prompt_ids is None or not self._inflight_requests:
            return super().acquire_server(request_id)
        server_id = self._routes.choose(request_id, prompt_ids, self._inflight_requests)
        self._inflight_requests[server_id] += 1
        return server_id, self._servers[server_id]

    def release_server(self, server_id: str, request_id: Any = None) -> None:
        super().release_server(server_id, request_id)
        self._routes.ended(request_id)
        if self._replicas and not self.get_total_inflight():
            self._saved.save(self._replicas)

    def clear_sticky_cache(self) -> Any:
        self._routes.forget_servers()
        return super().clear_sticky_cache()
