# SPDX-License-Identifier: Apache-2.0
import itertools
import random
from types import SimpleNamespace

import pytest
from sam_core.engines.verl.seeds import PromptNumbers, request_seeds, row_seeds, wants_seeds
from sam_core.seeds import request_seed


def test_no_two_requests_of_a_run_share_a_seed():
    seeds = {request_seed(*place) for place in itertools.product((0, 1), range(40), range(96), range(16))}
    assert len(seeds) == 2 * 40 * 96 * 16
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize("number", range(4))
def test_every_number_turns_half_of_the_bits(number):
    rng = random.Random(number)
    turned = []
    for _ in range(2000):
        place = [rng.randrange(1000) for _ in range(4)]
        other = [*place]
        other[number] += 1
        turned.append(request_seed(*place) ^ request_seed(*other))
    for bit in range(63):
        assert sum(seed >> bit & 1 for seed in turned) == pytest.approx(1000, abs=5 * 2000**0.5 / 2)


def test_places_that_swap_their_numbers_differ():
    assert len({request_seed(*places) for places in itertools.permutations(range(4))}) == 24


def test_rows_are_numbered_by_prompt_and_sibling():
    ranks = request_seeds(7, 3, 0, 6, 4) + request_seeds(7, 3, 6, 6, 4)
    assert ranks == [request_seed(7, 3, prompt, sibling) for prompt in range(3) for sibling in range(4)]


def test_a_seed_is_the_same_everywhere():
    assert request_seed(0, 0, 0, 0) == 1195769770526638388
    assert request_seed(-1, 0, 0, 0) == request_seed((1 << 64) - 1, 0, 0, 0)


@pytest.mark.parametrize(
    "engine_kwargs, wanted",
    [
        ({}, False),
        ({"speculative_config": None, "additional_config": None}, False),
        ({"speculative_config": {"method": "ngram"}}, False),
        ({"speculative_config": {"method": "sam", "sam": {"verify": "rejection"}}}, False),
        ({"speculative_config": {"method": "sam", "sam": {"verify": "seeded"}}}, True),
        ({"speculative_config": '{"method": "sam", "sam": {"verify": "seeded"}}'}, True),
        ({"additional_config": {"sam_verify": "seeded"}}, True),
    ],
)
def test_seeds_are_wanted_for_seeded_verification_only(engine_kwargs, wanted):
    assert wants_seeds(engine_kwargs) is wanted


def test_rows_of_a_rollout_have_its_seed_and_its_number_of_answers():
    engine = {"additional_config": {"sam_verify": "seeded"}}
    rollout = SimpleNamespace(seed=7, n=4, val_kwargs=SimpleNamespace(n=2))
    assert row_seeds(rollout, engine, False, 3, 2, 6) == request_seeds(7, 3, 2, 6, 4)
    assert row_seeds(rollout, engine, True, 3, 2, 6) == request_seeds(7, 3, 2, 6, 2)
    assert row_seeds(rollout, {}, False, 3, 2, 6) == 6 * [None]


def test_prompts_are_numbered_by_step_and_apart_from_validation():
    numbers = PromptNumbers()
    assert numbers(0, 2, True) == [-1, -2]
    assert numbers(1, 3, False) == [0, 1, 2]
    assert numbers(1, 1, True) == [-1]
    assert numbers(1, 2, False) == [3, 4]
    assert numbers(2, 1, False) == [0]
