# SPDX-License-Identifier: Apache-2.0
import contextlib
import itertools
from types import SimpleNamespace

import pytest
from sam_core.engines.verl.seeds import PromptPlaces, prompt_place, row_seeds, wants_seeds
from sam_core.seeds import GAMMA, request_seed, splitmix64


def test_no_two_requests_of_a_run_share_a_seed():
    seeds = {request_seed(*place) for place in itertools.product((0, 1), range(20), range(48), range(16))}
    assert len(seeds) == 2 * 20 * 48 * 16
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_seed_is_the_same_everywhere():
    """The first outputs are those of Vigna's splitmix64.c from state 0."""
    outputs = [splitmix64(GAMMA * i) for i in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert request_seed(0, 0, 0, 0) == 1195769770526638388
    assert request_seed(-1, 0, 0, 0) == request_seed((1 << 64) - 1, 0, 0, 0)


SEEDED = {"sam_verify": "seeded"}


@pytest.mark.parametrize(
    ("engine_kwargs", "val_seed", "wanted"),
    [
        ({"speculative_config": None, "additional_config": None}, None, False),
        ({"speculative_config": {"method": "ngram"}}, None, False),
        ({"speculative_config": '{"method": "sam", "sam": {"verify": "seeded"}}'}, None, True),
        ({"additional_config": SEEDED}, None, True),
        ({"speculative_config": {"method": "sam"}, "additional_config": SEEDED}, None, False),
        ({}, 0, r"val_kwargs.seed is 0, but the engine does not sample by seed: set .*sam\.verify=seeded"),
        ({"additional_config": SEEDED}, "x", "val_kwargs.seed must be an integer or null, got 'x'"),
        ({"additional_config": SEEDED}, True, "must be an integer"),
    ],
)
def test_seeds_are_wanted_for_seeded_verification_only(engine_kwargs, val_seed, wanted):
    refused = pytest.raises(ValueError, match=str(wanted)) if isinstance(wanted, str) else contextlib.nullcontext()
    with refused:
        assert wants_seeds(engine_kwargs, val_seed) is wanted


def test_rows_of_a_rollout_have_its_seed_and_its_number_of_answers():
    class ValKwargs(dict):
        n = 2

    engine = {"additional_config": {"sam_verify": "seeded"}}
    rollout = SimpleNamespace(seed=7, n=4, val_kwargs=ValKwargs())
    seeds = row_seeds(rollout, engine)
    assert seeds(False, 3, 2, 6) == [request_seed(7, 3, *divmod(row, 4)) for row in range(2, 8)]
    checked = [(prompt, answer) for prompt in (-2, -3, -4) for answer in (0, 1)]
    assert seeds(True, 3, 2, 6) == [request_seed(7, 3, *place) for place in checked]
    assert row_seeds(rollout, {}) is None
    rollout.val_kwargs = ValKwargs(seed=9)
    same = row_seeds(rollout, engine)
    for step in (3, 4):
        assert same(True, step, 2, 6) == [request_seed(7, 9, *place) for place in checked]
        assert same(False, step, 0, 1) == [request_seed(7, step, 0, 0)]


def test_prompts_are_placed_by_step_and_apart_from_validation():
    places = PromptPlaces(None)
    assert places(0, 2, 0) == [(0, -1), (0, -2)]
    assert places(1, 3, None) == [(1, 0), (1, 1), (1, 2)]
    assert places(7, 1, 2) == [(7, -3)], "the third of a validation"
    assert places(1, 2, None) == [(1, 3), (1, 4)], "validation, whatever its step, does not count"
    assert places(2, 1, None) == [(2, 0)]


def test_validations_with_a_seed_share_places_which_training_never_has():
    same, other = PromptPlaces(2), PromptPlaces(3)
    first = [*same(0, 3, 0), *same(0, 2, 3)]
    assert first == [*same(5, 5, 0)] == [(2, -1 - i) for i in range(5)]
    assert not {*first} & {*other(0, 5, 0)}
    trained = {place for step in range(5) for place in same(step, 5, None)}
    assert trained == {prompt_place(step, i, None, False) for step in range(5) for i in range(5)}
    assert not trained & {*first}
