# SPDX-License-Identifier: Apache-2.0
"""With `sam` and a model drafter, the text equals that of plain decoding, and both drafters draft."""

import random
import types

import pytest
import tiny_qwen3
import torch
from conftest import AUTO, SEEDED, TIGHT, pause_at_random, start
from engine_checks import settled, speculated
from sam_core.engines.vllm.model_drafter import combine
from schedule_draws import WORDS
from test_same_text import SAMPLED
from tiny_qwen3 import VOCAB


@pytest.fixture(scope="module")
def noisy(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("noisy")
    tiny_qwen3.save_noisy(folder, model)
    return {"method": "draft_model", "model": str(folder)}


@pytest.fixture(scope="module")
def with_draft_model(model, noisy):
    engine = start(model, AUTO, drafter=noisy, **TIGHT | {"max_num_batched_tokens": 64})
    yield engine
    engine.stop()


def stats(engine):
    """Return the increase of the drafters' counters since the last call."""
    before = getattr(engine, "seen", {})
    (engine.seen,) = engine.engine.collective_rpc("sam_stats")
    return {name: value - before.get(name, 0) for name, value in engine.seen.items()}


def test_texts_of_random_schedules(plain, with_draft_model):
    """The schedules have arrivals, priorities, preemptions and chunked prompts. One has random pauses of drafting."""
    assert "method='draft_model', num_model_tokens=3, num_speculative_tokens=15" in repr(
        with_draft_model.engine.vllm_config.speculative_config
    )
    rng, preemptions = random.Random(0), 0
    stats(with_draft_model)
    for seeded in (False, True):
        if seeded:
            with_draft_model.engine.collective_rpc(pause_at_random)
        prompts = [[rng.randrange(VOCAB - 1) for _ in range(rng.randrange(4, 70))] for _ in range(4)] * 2
        lengths, each = [rng.randrange(10, 60) for _ in prompts], SAMPLED * 2 if seeded else None
        expected = plain.run(prompts, lengths, each=each)
        priorities = [rng.randrange(3) for _ in prompts]
        assert with_draft_model.run(prompts, lengths, rng.randrange(4), each=each, priorities=priorities) == expected
        speculated(with_draft_model)
        settled(with_draft_model)
        preemptions += with_draft_model.log.preemptions
    with_draft_model.engine.collective_rpc(pause_at_random, kwargs={"seed": None})
    counted = stats(with_draft_model)
    assert 0 < counted["accepted_model_tokens"] < counted["model_tokens"] < counted["proposed"]
    assert preemptions > 0


@pytest.mark.slow
def test_new_text_is_drafted_by_the_model_and_known_text_by_the_automaton(plain, with_draft_model, prompts):
    counted = []
    for _ in range(2):
        stats(with_draft_model)
        assert with_draft_model.run(prompts[:4], 60) == plain.run(prompts[:4], 60)
        counted.append(stats(with_draft_model))
    assert counted[0]["accepted_model_tokens"] > 10 and counted[1]["accepted_history"] > 10
    assert counted[1]["model_tokens"] < counted[0]["model_tokens"] / 2


@pytest.mark.slow
def test_by_batch_size_and_synchronously(plain, model, noisy, prompts):
    engine = start(model, SEEDED, drafter=noisy, async_scheduling=False)
    for each in (None, SAMPLED):
        assert engine.run(prompts[:4], 24, stagger=2, each=each) == plain.run(prompts[:4], 24, each=each)
        speculated(engine)
    assert stats(engine)["accepted_model_tokens"] > 0
    engine.stop()


@pytest.mark.slow
def test_eagle3_drafts_from_hidden_states(device, tmp_path_factory, prompts):
    """The EAGLE-3 head is untrained, so its drafts are never right."""
    target, head = (tmp_path_factory.mktemp(name) for name in ("target", "head"))
    shape = {"num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    tiny_qwen3.save(target, **shape)
    tiny_qwen3.save_tokenizer(target, WORDS)
    tiny_qwen3.save_eagle3(head, target)
    plain, engine = start(target), start(target, AUTO, drafter={"method": "eagle3", "model": str(head)})
    for each in (None, SAMPLED):
        assert engine.run(prompts[:4], 24, stagger=2, each=each) == plain.run(prompts[:4], 24, each=each)
        speculated(engine)
    counted = stats(engine)
    assert 0 < counted["model_tokens"] < counted["proposed"] / 2
    plain.stop()
    engine.stop()


CONFIG = types.SimpleNamespace(parallel_config=types.SimpleNamespace(data_parallel_size=1))


class Own:
    """A model drafter of three tokens that records what its estimator learns."""

    num_speculative_steps = 3

    def __init__(self):
        self.draft_token_confidence_probs, self.learned, self.passes = torch.ones(4, 3), None, []

    def propose(self, batch, *args, num_speculative_tokens, **kwargs):
        self.draft_token_confidence_probs[:, :] = 0.5
        self.passes.append(num_speculative_tokens)
        return torch.full((2, 3), num_speculative_tokens or -1)

    def observe_verification(self, states, num_sampled, num_rejected):
        self.learned = [*zip(num_sampled.tolist(), num_rejected.tolist(), strict=True)]


def sam_of(**more):
    def propose(batch, *args, model=None, **kwargs):
        return model

    proposer = types.SimpleNamespace(drafting=True)
    given = {
        "pauses": types.SimpleNamespace(drafted=lambda passes: None),
        "enable_adaptive_verification": True,
        "runs_all_passes": True,
        "draft_token_confidence_probs": torch.zeros(4, 15),
    }
    return types.SimpleNamespace(proposer=proposer, propose=propose, **given | more)


def test_the_estimator_learns_of_the_models_own_tokens():
    """Requests 0 and 1 have no tokens of the model. Requests 2 to 4 have three, of which one, all, and all with more
    are accepted. Request 5 has the one token of a step with one pass."""
    of_model = torch.tensor([0, 0, 3, 3, 3, 1], dtype=torch.int32)
    drafter = combine(Own(), sam_of(drafter=types.SimpleNamespace(num_of_model=of_model)), CONFIG)
    sampled, rejected = torch.tensor([[5, 5, 2, 4, 9, 1], [3, 3, 4, 5, 2, 7]], dtype=torch.int32)
    drafter.observe_verification(torch.arange(6), sampled, rejected)
    assert drafter.learned == [(1, 0), (1, 0), (2, 2), (4, 0), (4, 0), (1, 1)]


@pytest.mark.parametrize(
    ("runs_all_passes", "planned", "passes"),
    [(True, 15, 3), (False, 15, 1), (True, 0, 0), (True, 2, 2)],
)
def test_passes(runs_all_passes, planned, passes):
    timed = []
    sam = sam_of(runs_all_passes=runs_all_passes, pauses=types.SimpleNamespace(drafted=timed.append))
    drafter = combine(Own(), sam, CONFIG)
    drafter.chooses_passes = True
    model = drafter.propose(None, num_speculative_tokens=planned)
    assert drafter.passes == timed == [passes]
    assert drafter.draft_token_confidence_probs is sam.draft_token_confidence_probs
    assert (model is None) == (passes == 0) and sam.draft_token_confidence_probs.max() == 0
    assert model is None or model.tokens.tolist() == [[passes] * passes] * 2 and model.confidences.shape == (2, passes)
