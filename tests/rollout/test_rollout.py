# SPDX-License-Identifier: Apache-2.0
"""The synchronous rollout drafts, reports its counters, keeps its history, and asks the engine only for outputs that
it needs."""

import pytest
from ranks import Rollout, metrics, sam
from sam_core.engines.verl.groups import group_params
from sam_core.engines.verl.rollout_log import META
from sam_core.seeds import request_seed

from sam_core import Pool


def asked(done):
    """Return the seeds, the numbers of log-probabilities and the extra arguments of all ranks' requests."""
    return zip(*(request for rank in done for request in rank["asked"]), strict=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def engines(model, folder):
    """Two engines of one rank each that sample with seeds at temperature 1; validations always use the same seeds."""
    val_kwargs, engine = {"n": 4, "seed": 5}, sam(verify="seeded", history=str(folder))
    rollout = Rollout(model, ranks=2, n=4, seed=7, val_kwargs=val_kwargs, engine=engine)
    yield rollout
    rollout.stop()


@pytest.fixture(scope="module")
def first(engines, prompts):
    return engines.ask("generate", prompts=prompts)


@pytest.fixture(scope="module")
def validated(engines, first, prompts):
    """The first validation, on the training prompts; its requests have another extra argument as well."""
    return engines.ask("generate", prompts=prompts, validate=True, sampling={"extra_args": {"other": 1}})


def test_drafts_are_verified_and_logged(first):
    log = metrics(first)
    tokens = sum(len(answer) for rank in first for answer in rank["answers"])
    assert log["rollout/spec/tokens"] == tokens > log["rollout/spec/request_steps"], "more than 1 per request and step"
    assert log["rollout/spec/proposed"] >= log["rollout/spec/drafted"] > 0 < log["rollout/spec/accepted"]
    assert {name.removeprefix(META) for rank in first for name in rank["meta_info"]} == {"0/1", "1/1"}


def test_log_probs_are_asked_for_only_where_wanted(first):
    _, log_probs, _ = asked(first)
    assert log_probs == 16 * (None,)


def test_index_survives_new_weights_and_finds_the_answers_of_the_step_before(engines, first, prompts):
    size = metrics(first)["rollout/spec/index_bytes"]
    assert metrics(first)["rollout/spec/proposed_history"] == 0
    engines.ask("next_step")
    log = metrics(engines.ask("generate", prompts=prompts))
    assert log["rollout/spec/index_bytes"] > size
    assert log["rollout/spec/proposed_history"] > 0 < log["rollout/spec/accepted"]


def test_validation_shares_no_drafts_with_training(engines, validated, prompts):
    """Training has history for the same prompts, but the validation drafts only from its own answers."""
    own, siblings, history = (metrics(validated)[f"rollout/spec/proposed_{k}"] for k in ("request", "group", "history"))
    assert own + siblings > 0 == history


def test_validations_have_the_same_answers(engines, validated, prompts):
    """The second validation drafts its answers from the first; a validation of later rows has other answers."""
    again = engines.ask("generate", prompts=prompts, validate=True)
    assert [rank["answers"] for rank in again] == [rank["answers"] for rank in validated]
    assert metrics(again)["rollout/spec/proposed_history"] > 0
    assert metrics(again)["rollout/spec/accepted"] > metrics(validated)["rollout/spec/accepted"]
    behind = engines.ask("generate", prompts=prompts, validate=True, validated_rows=16)
    assert [*next(asked(behind))] == [request_seed(7, 5, -5 - p, i) for p in range(4) for i in range(4)]
    assert [rank["answers"] for rank in behind] != [rank["answers"] for rank in validated]


def test_each_request_has_its_seed(first, validated):
    places = [divmod(row, 4) for row in range(16)]
    assert [*next(asked(first))] == [request_seed(7, 0, p, i) for p, i in places]
    answers = [tuple(answer) for rank in first for answer in rank["answers"] if len(answer) > 10]
    assert len(set(answers)) == len(answers) > 8, "siblings differ"
    seeds, _, extra_args = asked(validated)
    assert [*seeds] == [request_seed(7, 5, -1 - p, i) for p, i in places]
    assert all("sam_group" in args and args["other"] == 1 for args in extra_args), "other extra arguments are kept"


def test_a_collection_in_a_rollout_walks_what_the_rollout_made(engines, first, prompts):
    for during, after in (rank["frozen"] for rank in first):
        assert during > 100_000 and after == 0
    assert engines.ask("frozen_after_an_error", prompts=prompts) == [0, 0]


def test_a_worker_of_the_asynchronous_rollout_freezes_until_it_is_released(engines):
    for before, during, after in engines.ask("frozen_by_a_worker"):
        assert before == after == 0 and during > 100_000


def test_history_outlives_the_engines(engines, first, prompts, folder):
    """Each engine saves its groups when the next rollout tells it that they have ended. tests/ascend/test_history.py
    tests that saved files are found."""
    engines.ask("generate", prompts=prompts)
    for rank, done in enumerate(first):
        pool = Pool.load(folder / f"replica-{rank}" / "engine-0/pool")
        for prompt in {tuple(prompt) for prompt in done["prompts"]}:
            assert pool.drop(prompt)
            in_validation = group_params({"raw_prompt_ids": prompt}, validation=True)["extra_args"]["sam_group"]
            pool.drop(f"name {in_validation}".encode())
        assert pool.stats()["groups"] == 0, "prompts of the other engine"


def test_one_engine_without_drafts_samples_the_same(model, first, prompts):
    rollout = Rollout(model, n=4, seed=7, engine={"additional_config": {"sam_verify": "seeded"}})
    (plain,) = rollout.ask("generate", prompts=prompts)
    rollout.stop()
    assert metrics([plain])["rollout/spec/drafted"] == 0
    assert plain["answers"] == [answer for rank in first for answer in rank["answers"]]


@pytest.mark.slow
def test_ranks_of_an_engine_that_schedule_alone_stay_in_step(model, first, prompts):
    """`auto` decides by a clock of each rank. The answers equal those of engines with the article's switch, and the
    log-probabilities are the model's own."""
    settings = {"tensor_model_parallel_size": 2, "n": 4, "seed": 7, "calculate_log_probs": True}
    rollout = Rollout(model, ranks=2, engine=sam(switch="auto", verify="seeded"), **settings)
    leader, follower = rollout.ask("generate", prompts=prompts)
    expected, _ = rollout.ask("log_probs", prompts=leader["prompts"], answers=leader["answers"])
    rollout.stop()
    assert leader["answers"] == follower["answers"] == [answer for rank in first for answer in rank["answers"]]
    log, (_, log_probs, _) = metrics([leader]), asked([leader])
    assert log["rollout/spec/accepted"] > 0 and 0 < log["rollout/spec/switch_on_share"] < 1
    assert not follower["meta_info"]  # the leader reports for the engine
    assert log_probs == 16 * (0,)
    for got, true in zip(leader["log_probs"], expected, strict=True):
        assert got == pytest.approx(true, abs=2e-4)


@pytest.mark.slow
def test_ranks_send_drafts_only_where_the_switch_may_be_on(model, prompts):
    """The first step prefills six of a prompt's eight requests; drafts are made for at most six requests at once."""
    sizes = {"n": 8, "max_num_seqs": 32, "max_num_batched_tokens": 64, "tensor_model_parallel_size": 2}
    rollout = Rollout(model, ranks=2, engine=sam(threshold=6), **sizes)
    leader, follower = rollout.ask("generate", prompts=prompts)
    rollout.stop()
    assert leader["answers"] == follower["answers"]
    assert next(asked([leader])) == 32 * (None,), "only seeded verification takes seeds"
    (counted,) = leader["meta_info"].values()
    assert leader["sent"] == follower["sent"] == counted["sam_steps_on"] < counted["sam_steps"]
    assert counted["accepted"] > 0
