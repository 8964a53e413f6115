# SPDX-License-Identifier: Apache-2.0
"""The requests of a group go to one of vLLM's data-parallel engines, and no engine is swamped."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from sam_core.engines import routing
from sam_core.engines.routing import PromptRoutes
from sam_core.engines.vllm.routing import EngineRoutes
from sam_core.files import lock


def request(request_id, prompt=(1, 2), name=None, images=()):
    return types.SimpleNamespace(
        request_id=request_id,
        prompt_token_ids=prompt and list(prompt),
        sampling_params=types.SimpleNamespace(extra_args=name and {"sam_group": name}),
        mm_features=[types.SimpleNamespace(identifier=image) for image in images] or None,
    )


class Client:
    """Asks for an engine and tells where requests went, as the patched client of vLLM does."""

    def __init__(self, engines=4, first=0, history=None):
        self.routes, self.engines = EngineRoutes.from_options({"history": history}, first), engines
        self.asked = 0

    def send(self, rank=None, **arguments):
        """The engine that a new request goes to; `rank`: the engine that the request names."""
        self.asked += 1
        asked = request(f"r{self.asked}", **arguments)
        engine = self.routes.choose(asked, self.engines) if rank is None else rank
        self.routes.sent(asked.request_id, engine)
        return engine

    def end_all(self):
        self.routes.ended([f"r{i + 1}" for i in range(self.asked)])
        self.routes._saved.wait()

    def imbalance(self):
        return max(self.routes._in_flight.values()) - min(self.routes._in_flight.values())


def test_a_group_is_a_name_or_prompt_and_images():
    client = Client()
    assert client.send(name="task") == client.send(name="task", prompt=(9, 9, 9)) == 0
    assert client.send() == client.send() == 1
    assert client.send(images=["a"]) == client.send(images=["a"]) == 2
    assert client.send(images=["b"]) == client.send(images=["b"]) == 3
    assert client.send(name="task", prompt=None) == 0
    assert client.routes.choose(request("embeddings", prompt=None), 4) is None, "vLLM chooses"


def test_imbalance_is_bounded():
    """The imbalance is bounded during a large group and after its end."""
    client = Client(engines=2)
    for _ in range(600):
        client.send(name="validation")
    assert client.imbalance() <= 2 * 32
    client.end_all()
    homes = {prompt: client.send(prompt=(7, prompt)) for prompt in range(80)}
    client.end_all()
    for prompt in (prompt for prompt, home in homes.items() if home == 0):
        client.send(prompt=(7, prompt))
    assert client.imbalance() <= PromptRoutes.SLACK


def test_answers_to_a_prompt_share_an_engine_and_prompts_spread():
    client = Client()
    homes = [[client.send(prompt=(7, prompt)) for prompt in range(12)] for _ in range(8)]
    assert homes == 8 * [3 * [0, 1, 2, 3]]
    client.end_all()
    assert [client.send(prompt=(7, prompt)) for prompt in (6, 1, 0, 11)] == [2, 1, 0, 3], "the next epoch"
    client.end_all()
    assert [client.send(rank=0, prompt=(8, i)) for i in range(20)] == 20 * [0]
    assert [client.send(prompt=(9, prompt)) for prompt in range(9)] == 3 * [1, 2, 3], "they are counted"
    client.end_all()
    client.engines = 2
    assert [client.send(prompt=(7, prompt)) for prompt in range(4)] == [0, 1, 0, 1], "two engines are left"
    client.engines = 6
    assert [client.send(prompt=(10, prompt)) for prompt in (2, 3, 4, 5)] == [2, 3, 4, 5], "the new ones are idle"


def test_prompts_keep_their_homes_when_servers_join():
    """Homes survive forget_servers() while requests run, and a conversation goes on at the home of its first prompt."""
    routes, in_flight = PromptRoutes(), {0: 0, 1: 0}

    def ask(prompt, talk):
        server = routes.choose(talk, prompt, in_flight)
        in_flight[server] += 1
        return server

    homes = [ask([7, prompt], f"talk {prompt}") for prompt in range(8)]
    saved = routes.homes([0, 1])
    routes.forget_servers()
    assert routes.homes([0, 1]) == saved
    for number, home in enumerate(homes):
        in_flight[home] -= 1
        routes.ended(f"talk {number}")
    assert ask([7, 1, 8], "talk 1") == homes[1], "it is of the prompt that it began with"
    assert ask([7, 0], "another") == homes[0]
    routes.ended("another")
    in_flight[homes[0]] += 40
    assert ask([7, 0], "talk 0") != homes[0], "its server is busy, and it was not in the middle of a conversation"


def test_what_has_ended_is_forgotten(monkeypatch):
    client = Client()
    homes = [client.send(prompt=(7, prompt)) for prompt in range(10)]
    for _ in range(2):
        client.end_all()
    client.routes.ended(["never seen"])
    client.asked = 0
    assert client.send(prompt=(7, 5)) == homes[5], "the id was that of a request with another prompt"
    monkeypatch.setattr(PromptRoutes, "MAX_REMEMBERED", 10)
    for prompt in range(100):
        client.send(prompt=(8, prompt))
        client.end_all()
    assert client.imbalance() == 0 and len(client.routes._routes._homes) == 10


def test_routes_are_saved_while_no_request_is_in_flight(tmp_path, caplog):
    folder = tmp_path / "history"
    client, other = (Client(first=first, history=str(folder)) for first in (0, 2))
    for prompt in range(8):
        client.send(prompt=(7, prompt))
    other.send(rank=1)
    client.routes.ended(["r1"])
    assert not folder.exists(), "requests are in flight"
    client.end_all()
    other.end_all()
    assert len(json.loads((folder / "routes.json").read_text())) == 8, "the other client chose none"
    fewer = Client(engines=2, history=str(folder))
    assert {fewer.send(prompt=(7, prompt)) for prompt in range(8)} == {0, 1}
    for content in ("[1]", "7", "[[1, Infinity]]", 99999 * "["):
        caplog.clear()
        (folder / "routes.json").write_text(content)
        damaged = Client(history=str(folder))
        assert damaged.send() == 0 and "routes.json cannot be used" in caplog.text
        damaged.end_all()
        assert len(json.loads((folder / "routes.json").read_text())) == 1


def test_homes_are_listed_once_while_a_disk_is_busy(tmp_path, monkeypatch):
    client, listed, homes = Client(history=str(tmp_path)), [], PromptRoutes.homes
    monkeypatch.setattr(PromptRoutes, "homes", lambda *rest: listed.append(rest) or homes(*rest))
    with routing._writing:
        for prompt in range(3):
            client.send(prompt=(7, prompt))
            client.routes.ended([f"r{client.asked}"])
        assert len(listed) == 1
    client.routes._saved.wait()


@pytest.mark.parametrize(("clients", "later"), [(2, 5), (3, 1)])
def test_clients_with_the_same_first_engine_save_together(tmp_path, clients, later):
    """Several clients share two engines, and some begin with the same one. A restart changes the number of clients."""
    first, homes = [Client(2, 2 * n // clients, str(tmp_path)) for n in range(clients)], {}
    for prompt in range(12):
        homes[prompt] = first[prompt % clients].send(prompt=(7, prompt))
    for client in first:
        client.end_all()
    assert set(homes.values()) == {0, 1}
    for number in range(later):
        again = Client(2, 2 * number // later, str(tmp_path))
        assert {prompt: again.send(prompt=(7, prompt)) for prompt in homes} == homes


def test_a_prompt_that_another_client_moved_stays_there(tmp_path):
    Client(history=str(tmp_path)).end_all()
    one, two = clients = [Client(history=str(tmp_path)) for _ in range(2)]
    for client in clients:
        assert client.send(prompt=(7, 0)) == 0
        client.end_all()
        client.routes._saved._timer._next = 0
    for rank in 99 * [0]:
        two.send(rank=rank)
    moved = two.send(prompt=(7, 0))
    one.send(prompt=(7, 1))
    for client in (two, one):
        client.end_all()
    assert moved != 0 and Client(history=str(tmp_path)).send(prompt=(7, 0)) == moved


CLIENT = """
import sys
from sam_core import files

sys.path.insert(0, sys.argv[2])
from test_engine_routes import Client

def tell(*arguments):
    print("tried", flush=True)
    try_lock(*arguments)

try_lock, files.try_lock = files.try_lock, tell
client = Client(history=sys.argv[1])
for number in range(200):
    client.send(prompt=(int(sys.argv[3]), number))
client.end_all()
"""


def test_clients_of_other_processes_do_not_overwrite_each_other(tmp_path):
    """Each client tries 25 times to get the lock while another process holds it; in the end all routes are saved."""
    words, pipe = [sys.executable, "-c", CLIENT, str(tmp_path), str(Path(__file__).parent)], {"stdout": subprocess.PIPE}
    locked = lock(tmp_path / ".routes.json.lock", 1)
    clients = [subprocess.Popen([*words, str(number)], **pipe) for number in range(3)]
    for client in clients:
        assert [client.stdout.readline() for _ in range(25)] == 25 * [b"tried\n"]
    os.close(locked)
    assert [client.wait() for client in clients] == [0, 0, 0]
    assert len(json.loads((tmp_path / "routes.json").read_text())) == 600
