# SPDX-License-Identifier: Apache-2.0
"""What a device would wait for and run on its AICPU: a step with drafts beside one without, layer by layer.

Counted over the stand-in with its meter; `make device-costs` prints the tables.
"""

import csv
import json
import subprocess
import sys

import device_costs
import pytest
from ascend_engine import HERE, OLD, variables

BATCH = 4
WITH_LAYERS = ("plain, sampled", "rejection")
WITH_GRAPHS = ("plain, sampled", "plain, seeded", "switch off, rejection", "rejection", "seeded")


@pytest.fixture(scope="module", params=[False] if OLD else [False, True], ids=["eager", "graphs"][: 2 - OLD])
def measured(request):
    """Arms, and their costs by name and number of layers."""
    arms = device_costs.arms(request.param)
    if request.param:
        arms = {name: arms[name] for name in WITH_GRAPHS}
    found = device_costs.measure(arms, (BATCH,), (2,))
    if not request.param:
        for name, more in device_costs.measure({name: arms[name] for name in WITH_LAYERS}, (BATCH,), (4,)).items():
            found[name][BATCH] |= more[BATCH]
    return arms, {name: batches[BATCH] for name, batches in found.items()}


def pairs(measured, drafts):
    """(name, events, those of the engine without speculation) of each step that drafts, or whose switch is off."""
    arms, found = measured
    for name, arm in arms.items():
        if arm.beside and arm.drafts is drafts:
            for layers, events in found[name].items():
                yield f"{name}, {layers} layers", events, found[arm.beside][layers]


def dear(events):
    return [event for event in events if event[0] not in ("launch", "copy")]


def test_a_verifying_step_waits_no_more_than_a_plain_one(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        assert device_costs.total(ours, "wait") <= device_costs.total(plain, "wait"), (name, dear(ours))


def test_a_sampled_step_waits_for_its_tokens_alone(measured):
    """With graphs also for its stream, which upstream synchronises."""
    _, found = measured
    waits = 1 if 4 in found["plain, sampled"] else 2
    for name in ("plain, sampled", "rejection"):
        for events in found[name].values():
            assert device_costs.total(events, "wait") == waits, (name, dear(events))


def test_a_verifying_step_launches_few_more_kernels(measured):
    """Which draft is whose is found out on the host: on the device it took a hundred."""
    for name, ours, plain in pairs(measured, drafts=True):
        more = device_costs.total(ours, "launch") - device_costs.total(plain, "launch")
        assert more <= (34 if "log-prob" in name else 20), (name, more)


def test_a_verifying_step_copies_little_more_to_the_device(measured):
    """The indices of its logits, and in 0.11 the tokens that log-probabilities are gathered for."""
    for name, ours, plain in pairs(measured, drafts=True):
        more = device_costs.total(ours, "copy") - device_costs.total(plain, "copy")
        assert more <= 2, (name, more)


def test_a_verifying_step_runs_nothing_on_the_aicpu_that_a_plain_one_does_not(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        more = {event[1:3] for event in dear(ours) if event[0] == "AICPU"} - {event[1:3] for event in plain}
        assert not more, (name, dear(ours))
        assert not [event for event in dear(ours) if event[0] == "unknown"], name


def test_a_layer_launches_as_much_with_drafts_as_without(measured):
    arms, found = measured
    if "compilation_config" in arms["rejection"].settings:
        pytest.skip("a graph is one launch")
    plain, drafting = (
        {n: device_costs.total(events, "launch") for n, events in found[name].items()} for name in WITH_LAYERS
    )
    assert plain[4] - plain[2] == drafting[4] - drafting[2] > 10


def test_with_the_switch_off_the_step_is_the_plain_one(measured):
    """0.23 fills its numbers of accepted tokens by a copy where speculation was asked for, else by a kernel."""
    for name, ours, plain in pairs(measured, drafts=False):
        assert sorted(dear(ours)) == sorted(dear(plain)), name
        assert device_costs.total(ours, "launch", "copy") == device_costs.total(plain, "launch", "copy"), name


MISTAKES = {
    "an item in a layer": ("x[0, 0].item()", "wait"),
    "a bool": ("bool((x > 0).any())", "wait"),
    "a slice by a tensor": ("x[: (x > 0).sum()]", "wait"),
    "a slice by a tensor of a view": ("x.view(-1)[: n[-1]]", "wait"),
    "a mask": ("x[x > 0]", "wait"),
    "a mask that is written by": ("x.__setitem__(x > 5, 0)", "wait"),
    "tolist": ("x.tolist()", "wait"),
    "a copy to the host": ("x.cpu()", "wait"),
    "a new tensor of numbers": ("torch.tensor([1, 2], device='npu')", "wait"),
    "pageable memory": ("torch.ones(2).to('npu', non_blocking=True)", "wait"),
    "an event": ("(x + 1, event.record(), event.synchronize())", "wait"),
    "a search": ("torch.searchsorted(n, n)", "AICPU"),
    "a double compare": ("x.double() >= 0.5", "AICPU"),
    "a shift": ("n.long() >> 3", "AICPU"),
    "an operator that is not in the table": ("torch.special.erfcx(x)", "unknown"),
    "arithmetic": ("(x * 2 + 1).softmax(1).argmax(1)", None),
    "infinities replaced": ("x.nan_to_num(nan=0.0, posinf=1.0)", None),
    "pinned memory": ("torch.ones(2).pin_memory().to('npu', non_blocking=True)", None),
    "a copy that does not block": ("x.to('cpu', non_blocking=True)", None),
    "on the host": ("torch.ones(3)[torch.ones(3) > 0].tolist()", None),
}
PROGRAM = """
import collections, json, sys
import torch, torch_npu
from torch_npu.meter import METER
x, n, event = torch.ones(2, 3, device="npu"), torch.arange(2, device="npu", dtype=torch.int32), torch_npu.npu.Event()
found = {}
with torch.inference_mode():
    for name, code in json.load(sys.stdin).items():
        METER.events, METER.sources = collections.Counter(), []
        try:
            eval(code)
            found[name] = sorted({event[0] for event in METER.events} - {"launch", "copy"})
        except (RuntimeError, TypeError) as error:
            found[name] = str(error)
json.dump(found, sys.stdout)
"""
MIXED = {
    "a sum": "x + torch.ones(2, 3)",
    "a view beside the host": "x[1:].t() + torch.ones(3, 1)",
    "what a kernel returned": "torch_npu.npu_swiglu(torch.ones(2, 4, device='npu')) + torch.ones(2, 2)",
    "as an array": "x.numpy()",
}
PINNED = "(p := torch.ones(2).pin_memory(), event.record(), p.to('npu', non_blocking=True), {}, event.synchronize())"
OVERWRITTEN = {
    "before any event": PINNED.format("p.add_(1)"),
    "before its own event": PINNED.format("(event.synchronize(), p.add_(1), p.to('npu', non_blocking=True))"),
    "behind its event": PINNED.format("(event.record(), event.synchronize(), p.add_(1))"),
}


@pytest.fixture(scope="module")
def mistakes():
    code = {name: line for name, (line, _) in MISTAKES.items()} | MIXED | OVERWRITTEN
    environment = variables("metered")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(code),
        env=environment,
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_meter_sees(mistakes, name):
    kind = MISTAKES[name][1]
    assert mistakes[name] == ([kind] if kind else []), MISTAKES[name][0]


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_host_and_device_do_not_mix(mistakes, name):
    assert "npu:0" in mistakes[name], MIXED[name]


def test_memory_that_is_still_copied_is_not_overwritten(mistakes):
    errors = [isinstance(mistakes[name], str) and "was overwritten" in mistakes[name] for name in OVERWRITTEN]
    assert errors == [True, True, False], [mistakes[name] for name in OVERWRITTEN]


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
def test_min_tokens_behind_drafts_waits_for_nothing():
    """Request 1 has reached it with its drafts; 0 and 3 have not."""
    done = subprocess.run(
        [sys.executable, "-c", BEHIND_DRAFTS], env=variables("metered"), capture_output=True, text=True, cwd=HERE
    )
    assert done.returncode == 0, done.stderr
    events, masked = json.loads(done.stdout.splitlines()[-1])
    assert not events
    assert masked == [[0, 2], [0, 5], [3, 7]]


def test_each_row_of_the_table_has_a_source():
    with (HERE.parent / "patches/npu/operators.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 300
    for row in rows:
        assert row["unit"] in ("AiCore", "AICPU", "view", "host", "unknown"), row
        assert row["source"] or row["unit"] == "unknown", row
