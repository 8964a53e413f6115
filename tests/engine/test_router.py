# SPDX-License-Identifier: Apache-2.0
"""Tests of the router plug-in of verl. tests/verl_plugin tests when verl uses it, tests/sam_core tests the routes."""

import itertools

from sam_core.engines.verl.router import PromptRouter

PROMPTS = [[1, 2, i] for i in range(8)]


def test_siblings_share_a_replica_also_in_a_run_that_is_started_again(tmp_path, monkeypatch):
    file = tmp_path / "history" / "routes.json"
    monkeypatch.setenv("SAM_ROUTES", str(file))
    router = PromptRouter({f"first-{i}": object() for i in range(4)})
    asked = [*itertools.product(range(8), range(8))]
    homes = [{router.acquire_server(f"{i}-{j}", prompt_ids=p)[0] for j in range(8)} for i, p in enumerate(PROMPTS)]
    assert all(len(home) == 1 for home in homes) and len(set.union(*homes)) == 4, "and prompts spread over replicas"
    assert {router.get_inflight_count(f"first-{i}") for i in range(4)} == {16}
    for i, j in asked:
        assert not file.exists(), "a request is running"
        router.release_server(*homes[i], request_id=f"{i}-{j}")
    assert router.get_total_inflight() == 0 and not router._routes._running
    router._saved.wait()
    replicas = {f"second-{i}": object() for i in range(4)}
    again, late = PromptRouter(replicas), PromptRouter({})
    late.add_servers(replicas)  # as verl adds elastic replicas
    for i, one in itertools.product((6, 3, 1, 0, 7), (again, late)):
        assert {one.acquire_server(f"{i}", prompt_ids=PROMPTS[i])[0].replace("second", "first")} == homes[i]
    router.remove_servers(list(homes[0]))
    assert router.acquire_server("0-9", prompt_ids=PROMPTS[0])[0] not in homes[0]
