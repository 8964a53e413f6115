# SPDX-License-Identifier: Apache-2.0
"""Routing of rollout requests for verl: the answers to one prompt go to one replica, where they share a group index.

verl's own balancer is sticky on a request id that is fresh for every sample, which spreads the siblings of a prompt. Used
through `actor_rollout_ref.rollout.router_config_path`, see router.yaml.
"""

from verl.workers.rollout.router import GlobalRequestLoadBalancer


class PromptRouter(GlobalRequestLoadBalancer):
    """Sticky on the prompt; a prompt that is new goes to the replica with the fewest requests in flight."""

    def __init__(self, servers, config=None):
        super().__init__(servers)

    def require_acquire_fields(self):
        return ["prompt_ids"]

    def acquire_server(self, request_id, prompt_ids=None):
        if prompt_ids is None or request_id in self._request_id_to_server:  # a later turn follows its first
            return super().acquire_server(request_id)
        server_id, handle = super().acquire_server(hash(tuple(prompt_ids)))
        self._request_id_to_server[request_id] = server_id
        return server_id, handle
