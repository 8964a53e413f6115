# SPDX-License-Identifier: Apache-2.0
"""Routing of rollout requests for verl: the answers to one prompt go to one replica, where they share a group index.

verl's own balancer is sticky on a request id that is fresh for every sample, which spreads the siblings of a prompt. Used
through `actor_rollout_ref.rollout.router_config_path`, see router.yaml.
"""

import json
import logging
import os
from pathlib import Path

from sam_core.files import write_json
from sam_core.history import Seldom
from sam_core.routing import PromptRoutes
from verl.workers.rollout.router import GlobalRequestLoadBalancer

logger = logging.getLogger(__name__)


class PromptRouter(GlobalRequestLoadBalancer):
    """verl's balancer, its choice made by PromptRoutes.

    Where the environment names a file as SAM_ROUTES, a run that is started again sends prompts to the replicas that have
    their history, by the order in which verl lists the replicas.
    """

    def __init__(self, servers, config=None):
        super().__init__(servers)
        self._routes = PromptRoutes()
        self._replicas = list(servers)
        self._seldom = Seldom()
        self._file = Path(os.environ["SAM_ROUTES"]) if os.environ.get("SAM_ROUTES") else None
        self._recall()

    def _recall(self):
        try:
            if self._file and self._replicas:
                self._routes.return_home(json.loads(self._file.read_text()), self._replicas)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError) as e:
            logger.warning("%s cannot be used (%s): prompts are routed anew", self._file, e)

    def add_servers(self, servers):
        super().add_servers(servers)
        first = not self._replicas
        self._replicas += [server for server in servers if server not in self._replicas]
        if first:
            self._recall()

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
        if self._file and self._replicas and not self.get_total_inflight() and self._seldom.due:
            try:
                self._seldom.did(self._save)
            except OSError as e:
                logger.warning("routes were not saved: %s", e)

    def _save(self):
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, self._routes.homes(self._replicas))

    def clear_sticky_cache(self):
        self._routes = PromptRoutes()
        return super().clear_sticky_cache()
