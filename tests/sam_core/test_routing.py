# SPDX-License-Identifier: Apache-2.0
"""Answers to one prompt meet on one server, again in later epochs, and no server is swamped."""

from sam_core.engines.routing import PromptRoutes


class Fleet:
    """Servers with their requests in flight, as a balancer counts them."""

    def __init__(self, servers=4):
        self.routes, self.asked = PromptRoutes(), 0
        self.in_flight = dict.fromkeys(range(servers), 0)
        self.running = []

    def ask(self, prompt, request_id=None):
        self.asked += 1
        request_id = request_id or f"r{self.asked}"
        server = self.routes.choose(request_id, [7, prompt], self.in_flight)
        self.in_flight[server] += 1
        self.running.append((request_id, server))
        return server

    def end(self, request_id, server):
        self.running.remove((request_id, server))
        self.in_flight[server] -= 1
        self.routes.ended(request_id)

    def end_all(self):
        for request in list(self.running):
            self.end(*request)

    def imbalance(self):
        return max(self.in_flight.values()) - min(self.in_flight.values())


def test_a_prompt_of_very_many_answers_is_spread():
    fleet = Fleet()
    for _ in range(512):
        fleet.ask(0)
    assert fleet.imbalance() <= 64


def test_a_large_group_once_does_not_widen_the_bound_for_ever():
    fleet = Fleet(servers=2)
    for _ in range(32):
        fleet.ask("validation")
    fleet.end_all()
    homes = {prompt: fleet.ask(prompt) for prompt in range(80)}
    fleet.end_all()
    for prompt in (prompt for prompt, home in homes.items() if home == 0):
        fleet.ask(prompt)
    assert fleet.imbalance() <= PromptRoutes.SLACK


def test_a_conversation_stays_where_it_began():
    fleet = Fleet(2)
    home = fleet.ask(0, "talk")
    fleet.end("talk", home)
    for _ in range(40):
        fleet.in_flight[home] += 1
    assert fleet.routes.choose("talk", [7, 0, 3], fleet.in_flight) == home
    assert fleet.ask(0, "another") == home, "a turn of it is running: siblings follow"
    fleet.routes.ended("talk")
    fleet.end("another", home)
    assert fleet.ask(0) != home


def test_requests_are_spread_anew_and_prompts_keep_their_homes():
    """As when servers join, while requests run or wait to go on."""
    fleet = Fleet(2)
    homes = [fleet.ask(prompt, f"talk {prompt}") for prompt in range(8)]
    saved = fleet.routes.homes([0, 1])
    fleet.routes.forget_servers()
    assert fleet.routes.homes([0, 1]) == saved
    fleet.end_all()
    assert not fleet.routes._running
    assert fleet.ask((1, "and its answer so far"), "talk 1") == homes[1], "it is of the prompt that it began with"
    assert [fleet.ask(prompt) for prompt in range(8)] == homes
    fleet.end_all()
    fleet.in_flight[homes[0]] += 40
    assert fleet.ask(0, "talk 0") != homes[0], "its server is busy, and it was not in the middle of a conversation"


def test_a_server_that_is_gone_is_not_chosen():
    fleet = Fleet(2)
    home = fleet.ask(0, "talk")
    del fleet.in_flight[home]
    assert fleet.ask(0) != home and fleet.ask(0, "talk") != home


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(PromptRoutes, "MAX_REMEMBERED", 10)
    fleet = Fleet()
    for prompt in range(100):
        fleet.ask(prompt)
        fleet.end_all()
    assert len(fleet.routes._homes) == len(fleet.routes._requests) == 10 and not fleet.routes._running
    fleet.routes.ended("never seen")
