# SPDX-License-Identifier: Apache-2.0
"""What a device would wait for and run on its AICPU: a step with drafts and one without, layer by layer.

Counted over the stand-in with its meter; `make device-costs` prints the tables.
"""

import json

import device_costs as costs
import pytest
from ascend_engine import OLD, start

BATCH, LAYERS = 4, 2


@pytest.fixture(scope="module")
def measured():
    """Arms, and the events of a step of each. In graphs the code of a step is that of eager ones."""
    arms = costs.arms(graphs=False)
    found = costs.measure(arms, (BATCH,), (LAYERS,))
    return arms, {name: batches[BATCH][LAYERS] for name, batches in found.items()}


def pairs(measured, drafts):
    """(name, events, those of the engine without speculation) of each step that drafts, or whose switch is off."""
    arms, found = measured
    for name, arm in arms.items():
        if arm.baseline and arm.drafts is drafts:
            yield name, found[name], found[arm.baseline]


def dear(events):
    return [event for event in events if event[0] not in ("launch", "copy")]


def test_a_verifying_step_waits_no_more_than_a_plain_one(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        assert costs.total(ours, "wait") <= costs.total(plain, "wait"), (name, dear(ours))


def test_a_sampled_step_waits_for_its_tokens_alone(measured):
    _, found = measured
    for name in ("plain, sampled", "rejection"):
        assert costs.total(found[name], "wait") == 1, (name, dear(found[name]))


def test_a_verifying_step_launches_few_more_kernels(measured):
    """Which draft is whose is found out on the host: on the device it took a hundred."""
    for name, ours, plain in pairs(measured, drafts=True):
        more = costs.total(ours, "launch") - costs.total(plain, "launch")
        assert more <= (34 if "log-prob" in name else 20), (name, more)


def test_a_verifying_step_copies_little_more_to_the_device(measured):
    """The indices of its logits, and in 0.11 the tokens that log-probabilities are gathered for."""
    for name, ours, plain in pairs(measured, drafts=True):
        more = costs.total(ours, "copy") - costs.total(plain, "copy")
        assert more <= 2, (name, more)


def test_a_verifying_step_runs_nothing_on_the_aicpu_that_a_plain_one_does_not(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        more = {event[1:3] for event in dear(ours) if event[0] == "AICPU"} - {event[1:3] for event in plain}
        assert not more, (name, dear(ours))
        assert not [event for event in dear(ours) if event[0] == "unknown"], name


def test_with_the_switch_off_the_step_is_the_plain_one(measured):
    """0.23 fills its numbers of accepted tokens by a copy where speculation was asked for, else by a kernel."""
    for name, ours, plain in pairs(measured, drafts=False):
        assert sorted(dear(ours)) == sorted(dear(plain)), name
        assert costs.total(ours, "launch", "copy") == costs.total(plain, "launch", "copy"), name


BEHIND_DRAFTS = """
import collections, json, sys
import torch, torch_npu
from torch_npu.meter import METER
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
processor = MinTokensLogitsProcessor(None, torch.device("npu:0"), True)
processor.min_toks = {0: (6, [1] * 4, {2, 5}), 1: (6, [1] * 4, {2, 5}), 3: (6, [1] * 4, {7})}
logits, METER.events = torch.zeros(4, 8, device="npu"), collections.Counter()
processor.apply_to_bonus(logits, [[3], [3, 4], [], []])
events = [event for event in METER.events if event[0] not in ("launch", "copy")]
json.dump([events, logits.isinf().nonzero().tolist()], sys.stdout)
"""


@pytest.mark.skipif(OLD, reason="requests with min_tokens are not drafted")
def test_min_tokens_behind_drafts_waits_for_nothing(tmp_path):
    """Request 1 has reached it with its drafts; 0 and 3 have not."""
    program = tmp_path / "behind_drafts.py"
    program.write_text(BEHIND_DRAFTS)
    printed, _ = start("metered", str(program)).communicate()
    events, masked = json.loads(printed.splitlines()[-1])
    assert not events
    assert masked == [[0, 2], [0, 5], [3, 7]]
