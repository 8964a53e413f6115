# SPDX-License-Identifier: Apache-2.0
import itertools
from types import SimpleNamespace

import pytest
from sam_core.engines.verl.seeds import PromptNumbers, request_seeds, row_seeds, wants_seeds
from sam_core.seeds import request_seed


def test_no_two_requests_of_a_run_share_a_seed():
    seeds = {request_seed(*place) for place in itertools.product((0, 1), range(40), range(96), range(16))}
    assert len(seeds) == 2 * 40 * 96 * 16
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_seed_is_the_same_everywhere():
    assert request_seed(0, 0, 0, 0) == 1195769770526638388
    assert request_seed(-1, 0, 0, 0) == request_seed((1 << 64) - 1, 0, 0, 0)


@pytest.mark.parametrize(
    "engine_kwargs, wanted",
    [
        ({"speculative_config": None, "additional_config": None}, False),
        ({"speculative_config": {"method": "ngram"}}, False),
        ({"speculative_config": {"method": "sam", "sam": {"verify": "rejection"}}}, False),
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
    assert request_seeds(7, 3, 2, 6, 4) == [request_seed(7, 3, *divmod(row, 4)) for row in range(2, 8)]
    assert row_seeds(rollout, engine, True, 3, 2, 6) == request_seeds(7, 3, 2, 6, 2)
    assert row_seeds(rollout, {}, False, 3, 2, 6) == 6 * [None]


def test_prompts_are_numbered_by_step_and_apart_from_validation():
    numbers = PromptNumbers()
    assert numbers(0, 2, True) == [-1, -2]
    assert numbers(1, 3, False) == [0, 1, 2]
    assert numbers(1, 1, True) == [-1]
    assert numbers(1, 2, False) == [3, 4]
    assert numbers(2, 1, False) == [0]
