# SPDX-License-Identifier: Apache-2.0
"""Tests of the waits, launches, copies and AICPU operators of a step with drafts, compared with a plain step.

The meter of the stand-in for torch_npu counts them; `make device-costs` prints the tables.
"""

import json

import device_costs as costs
import pytest
from ascend_engine import OLD, start

pytestmark = [pytest.mark.slow] if OLD else []  # with vLLM 0.11 these tests take a minute
BATCH, LAYERS = 4, 2


@pytest.fixture(scope="module")
def measured():
    """Return the arms, and the events of a step of each arm. With graphs a step runs the same code as an eager step."""
    arms = costs.arms(graphs=False)
    found = costs.measure(arms, (BATCH,), (LAYERS,))
    return arms, {name: batches[BATCH][LAYERS] for name, batches in found.items()}


def pairs(measured, drafts):
    """Yield (name, events, events without speculation) for each arm that drafts, or for each whose switch is off."""
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
    """The host assigns the drafts to requests: on the device this took a hundred kernels."""
    for name, ours, plain in pairs(measured, drafts=True):
        more = costs.total(ours, "launch") - costs.total(plain, "launch")
        assert more <= (34 if "log-prob" in name else 20), (name, more)


def test_a_verifying_step_copies_little_more_to_the_device(measured):
    """The indices of its logits; in 0.11 tokens for log-probabilities, in 0.23 the numbers of accepted tokens."""
    for name, ours, plain in pairs(measured, drafts=True):
        more = costs.total(ours, "copy") - costs.total(plain, "copy")
        assert more <= 2, (name, more)


def test_a_verifying_step_runs_nothing_on_the_aicpu_that_a_plain_one_does_not(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        more = {event[1:3] for event in dear(ours) if event[0] == "AICPU"} - {event[1:3] for event in plain}
        assert not more, (name, dear(ours))
        assert not [event for event in dear(ours) if event[0] == "unknown"], name


def test_with_the_switch_off_the_step_is_the_plain_one(measured):
    """vllm-ascend 0.23 fills the numbers of accepted tokens by a copy with speculation, and by a kernel without."""
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
    """Request 1 reaches min_tokens with its drafts; requests 0 and 3 do not, so their stop tokens are masked."""
    program = tmp_path / "behind_drafts.py"
    program.write_text(BEHIND_DRAFTS)
    printed, _ = start("metered", str(program)).communicate()
    events, masked = json.loads(printed.splitlines()[-1])
    assert not events
    assert masked == [[0, 2], [0, 5], [3, 7]]
