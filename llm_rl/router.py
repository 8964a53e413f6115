# SPDX-License-Identifier: Apache-2.0
"""Routing of rollout requests for verl: the answers to one prompt go to one replica, where they share a group index.

verl's own balancer is sticky on a request id that is fresh for every sample, which spreads the siblings of a prompt. Used
through `actor_rollout_ref.rollout.router_config_path`, see router.yaml.
"""

from sam_core.routing import PromptRoutes
from verl.workers.rollout.router import GlobalRequestLoadBalancer


class PromptRouter(GlobalRequestLoadBalancer):
    """verl's balancer, its choice made by PromptRoutes."""

    def __init__(self, servers, config=None):
        super().__init__(servers)
        self._routes = PromptRoutes()

    def require_acquire_fields(self):
        return ["prompt_ids"]

    def require_release_fields(self):
        return ["request_id"]

    def acquire_server(self, request_id, prompt_ids=None):
        if prompt_ids is None or not self._inflight_requests:
            return super().acquire_server(request_id)
        server_id = self._routes.choose(request_id, prompt_ids, self._inflight_requests)
        self._inflight_requests[server_id] += 1
        return server_id, self._servers[server_id]

    def release_server(self, server_id, request_id=None):
        super().release_server(server_id, request_id)
        self._routes.ended(request_id)

    def clear_sticky_cache(self):
        self._routes = PromptRoutes()
        return super().clear_sticky_cache()
