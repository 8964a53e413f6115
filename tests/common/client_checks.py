# SPDX-License-Identifier: Apache-2.0
"""Checks, without engines, of vLLM's client of several data-parallel engines, which chooses the engine of a request."""

import asyncio
import types
from unittest import mock


def new_client(speculative, client_index=0, client_count=1):
    """Return a DPLBAsyncMPClient of four engines, without sockets. speculative: (method, options) or None."""
    from vllm.v1.engine import core_client

    def connect(self, *args):
        self.client_index = client_index
        self.core_engines = [rank.to_bytes(2, "little") for rank in range(4)]
        load = [0, 0, 0.0] if hasattr(self, "engine_inflight") else [0, 0]  # 0.32 also counts cache usage
        self.lb_engines = [list(load) for _ in range(4)]

    if speculative:
        method, sam = speculative
        speculative = types.SimpleNamespace(method=method, sam=sam, is_sam=method == "sam")
    config = types.SimpleNamespace(speculative_config=speculative)
    with mock.patch.object(core_client.DPAsyncMPClient, "__init__", connect):
        return core_client.DPLBAsyncMPClient(config, None, False, None, client_count, client_index)


def send(client, request_id, prompt, **fields):
    """Return the rank of the engine that the client chooses for a request."""
    import msgspec
    from vllm.v1.engine import EngineCoreRequest

    required = {field.name: None for field in msgspec.structs.fields(EngineCoreRequest) if field.required}
    fields = required | {"request_id": request_id, "prompt_token_ids": prompt} | fields
    engine = client.get_core_engine_for_request(EngineCoreRequest(**fields))
    assert client.reqs_in_flight[request_id] == engine, "aborts go there"
    return int.from_bytes(engine, "little")


def send_groups(client, prompts=8):
    """Request 8 answers to each prompt, one round of prompts after the other; return the engines for each prompt."""
    sent = [[send(client, f"{prompt}-{i}", [7, prompt]) for prompt in range(prompts)] for i in range(8)]
    return [list(homes) for homes in zip(*sent, strict=True)]


def check_answers_to_a_prompt_share_an_engine():
    from vllm.v1.engine import EngineCoreOutputs

    client = new_client(("sam", None))
    homes = send_groups(client)
    assert homes == [8 * [prompt % 4] for prompt in range(8)], homes
    ended = EngineCoreOutputs(finished_requests=set(client.reqs_in_flight))
    asyncio.run(client.process_engine_outputs(client, ended))
    assert not client.reqs_in_flight
    assert [send(client, f"later {prompt}", [7, prompt]) for prompt in (6, 1, 0, 3)] == [2, 1, 0, 3]
    assert send(new_client(("sam", None), client_index=1, client_count=2), "0", [1]) == 2


def check_other_choices_stay_first():
    """A rank in the request, a session's engine, and vLLM's own choice for a request without tokens come first."""
    client = new_client(("sam", {}))
    ranks = [send(client, f"ranked {i}", [8, i], data_parallel_rank=0) for i in range(8)]
    assert ranks == 8 * [0]
    assert [send(client, f"new {prompt}", [7, prompt]) for prompt in range(6)] == 2 * [1, 2, 3], "they were not counted"
    assert send(client, "new 4", [7, 4, 4]) == 2, "an input of a session"
    client.lb_engines[0][1] = 9
    assert send(client, "embeddings", None) in (1, 2, 3)


def check_vllm_chooses_by_load_without_shared_indexes():
    for speculative in (None, ("ngram", None), ("sam", {"sources": ["request"]})):
        homes = send_groups(new_client(speculative), prompts=5)
        assert all(len(set(engines)) == 4 for engines in homes), homes
