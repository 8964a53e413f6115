# SPDX-License-Identifier: Apache-2.0
"""Tests of the keys and positions of requests that a runner passes to the sampler."""

import random
from types import SimpleNamespace

import pytest
import torch
from batches import seeded_sample
from sam_core.engines.vllm import sampling
from sam_core.engines.vllm.sampling import RequestNoise
from sam_core.seeds import request_key


def request(seed, length):
    return SimpleNamespace(sampling_params=SimpleNamespace(seed=seed), num_tokens=length)


def test_noise_of_a_step():
    requests = {"a": request(11, 4), "b": request(None, 0), "c": request(-3, 7), "d": request(None, 0)}
    make, same, other = (RequestNoise(seed, torch.device("cpu")) for seed in (0, 0, 1))
    noise = make(["c", "a", "b"], requests, [2, 0, 1])
    keys = noise.keys.tolist()
    assert keys[:2] == [request_key(-3), request_key(11)] and noise.first.tolist() == [7, 4, 0]
    assert keys[2] != make(["d"], requests, None).keys[0], "two requests without a seed share their noise"
    assert keys[2] == same(["b"], requests, None).keys[0], "ranks differ"
    assert keys[2] != other(["b"], requests, None).keys[0], "runs repeat each other"
    probs = torch.rand(6, 300).softmax(1)
    places = [(0, 7), (0, 8), (0, 9), (1, 4), (2, 0), (2, 1)]  # request and position of each row
    rows, at = zip(*places, strict=True)
    wanted = seeded_sample(probs, torch.tensor(keys)[list(rows)], torch.tensor(at))
    assert torch.equal(noise.sample(probs), wanted)
    plain = make(["c", "a", "b"], requests, None)
    assert torch.equal(plain.sample(probs[:3]), seeded_sample(probs[:3], torch.tensor(keys), torch.tensor([7, 4, 0])))


def test_keys_are_made_once_a_request_and_belong_to_its_seed(monkeypatch):
    """The order of the rows changes, requests gain tokens, and a request id gets another seed."""
    made = []
    monkeypatch.setattr(sampling, "request_key", lambda seed: made.append(seed) or request_key(seed))
    requests = {str(i): request(100 + i, i) for i in range(50)}
    make, rng = RequestNoise(0, torch.device("cpu")), random.Random(4)
    req_ids = list(requests)
    for step in range(40):
        if step % 3 == 0:
            rng.shuffle(req_ids)
        drafts = [rng.randrange(4) for _ in req_ids] if step % 2 else None
        noise = make(req_ids, requests, drafts)
        assert noise.keys.tolist() == [request_key(100 + int(req_id)) for req_id in req_ids]
        assert noise.first.tolist() == [requests[req_id].num_tokens for req_id in req_ids]
        assert noise.num_draft_tokens == drafts
        for req_id in req_ids:
            requests[req_id].num_tokens += rng.randrange(4)
    assert sorted(made) == list(range(100, 150))
    requests["7"] = request(7, 3)
    row = req_ids.index("7")
    assert make(req_ids, requests, None).keys[row] == request_key(7)
    requests["7"].sampling_params.seed = 2**64  # refused each time
    for _ in range(2):
        with pytest.raises(ValueError, match="more than 64 bits"):
            make(req_ids, requests, None)
    requests["7"].sampling_params.seed = 8
    assert make(req_ids, requests, None).keys[row] == request_key(8)
