# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from sam_core.engines.verl import rollout_log
from sam_core.engines.vllm.step_log import ENV_LOG, SUMS


def taken(drafted=40, steps_on=5, **other):
    drafter = {"sam_steps": 10, "sam_steps_on": steps_on, "sam_proposed": 44, "sam_bytes_used": 100}
    return dict.fromkeys(SUMS, 0) | {"drafted": drafted, "busy_s": 2} | drafter | other


def test_metrics_over_replicas():
    row = dict.fromkeys(SUMS, 0) | {"tokens": 30, "request_steps": 20, "drafted": 40, "accepted": 10, "tail_s": 3}
    drafter = {"sam_steps": 10, "sam_steps_on": 5, "sam_draft_s": 0.02, "sam_proposed": 44, "sam_proposed_group": 4}
    drafter |= {"sam_steps_from_0": 0, "sam_tokens_from_0": 0, "sam_steps_from_128": 3}
    metrics = rollout_log.step_metrics([row | drafter | {"cpu_s": 2}, row | drafter | {"tail_s": 5, "cpu_s": 3}])
    expected = {"tokens_per_step": 1.5, "acceptance_rate": 0.25, "padding": 0, "switch_on_share": 0.5, "tail_s": 5}
    expected |= {"draft_ms": pytest.approx(2), "cpu_s": 5, "drafted": 80, "proposed_group": 8, "steps_from_128": 6}
    assert {name: metrics["rollout/spec/" + name] for name in expected} == expected
    assert not {"rollout/spec_accept_rate", "rollout/spec/steps_from_0"} & metrics.keys()
    padded = rollout_log.step_metrics([row | drafter | {"sam_padding": 20, "sam_padding_accepted": 1}])
    assert padded["rollout/spec/acceptance_rate"] == 0.45  # (10 - 1) / (40 - 20)
    verls = rollout_log.step_metrics([row | {"drafts": 5}, row | {"drafts": 20}])
    assert (verls["rollout/spec_accept_rate"], verls["rollout/spec_accept_length"]) == (0.25, 1.8)
    assert not {"rollout/spec/cpu_s", "rollout/spec/switch_on_share"} & verls.keys()


def test_rollouts_of_a_step_are_summed_by_replica():
    meta_info = {"timing": {}, "temperature": 1.0}
    for replica, rollout in [(0, 6), (1, 6), (0, 7), (1, 7)]:
        sums = taken(busy_s=replica + 1, sam_bytes_used=10 * rollout + replica)
        meta_info |= rollout_log.rollout_meta(replica, rollout, sums)
    metrics = rollout_log.rollout_metrics(meta_info)
    expected = {"drafted": 160, "busy_s": 4, "index_bytes": 71, "switch_on_share": 0.5}
    assert {name: metrics["rollout/spec/" + name] for name in expected} == expected
    assert rollout_log.rollout_metrics({"timing": {}}) == {}


def test_a_step_that_asked_for_drafts_and_verified_none_says_so(caplog):
    rollout_log.step_metrics([taken(), taken(drafted=0)])
    rollout_log.step_metrics([dict.fromkeys(SUMS, 0)])  # did not ask for drafts
    rollout_log.step_metrics([taken(drafted=0)])  # generated nothing, as before the first step
    assert not caplog.messages
    rollout_log.step_metrics([taken(drafted=0, steps_on=2, tokens=9), taken(drafted=0, steps_on=1)])
    assert caplog.records[0].levelname == "WARNING"
    assert "no draft was verified" in caplog.messages[0]
    assert "88 tokens were proposed, and drafting was on in 3 of 20 engine steps" in caplog.messages[0]


def test_answers_are_logged_only_where_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv(ENV_LOG, str(tmp_path / "run"))
    rollout_log.log_answer((1, 2, 3), [5, 6], [7, 8], [-0.5, -0.12345678])
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv(rollout_log.ENV_ANSWERS, "1")
    rollout_log.log_answer((1, 2, 3), [5, 6], [7, 8], [-0.5, -0.12345678])
    rollout_log.log_answer((1, 2, 4), [5, 6], [7], None)
    (path,) = (tmp_path / "run").iterdir()
    first, second = map(json.loads, path.read_text().splitlines())
    assert first[:3] + first[4:] == [1, 2, 3, [7, 8], [-0.5, -0.1234568]]
    assert second == [1, 2, 4, first[3], [7], None]
