# SPDX-License-Identifier: Apache-2.0
"""What a device would wait for and run on its AICPU: a step with drafts beside one without, layer by layer.

Counted over the stand-in with its meter; `make device-costs` prints the tables.
"""

import json

import subprocess
import sys

import device_costs
import pytest
from ascend_engine import HERE, OLD, variables

BATCH = 8


@pytest.fixture(scope="module", params=[False] if OLD else [False, True], ids=lambda graphs: "graphs" if graphs else "eager")
def measured(request):
    arms = device_costs.arms(request.param)
    return arms, device_costs.measure(arms, (BATCH,))


def pairs(measured, drafts):
    """(name, its costs, those of the engine without speculation) of each arm that drafts, or of each whose switch is off."""
    arms, found = measured
    for name, arm in arms.items():
        if arm.beside and arm.drafts is drafts:
            yield name, found[name][BATCH], found[arm.beside][BATCH]


def test_a_verifying_step_waits_no_more_than_a_plain_one(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        (layer, step), beside = device_costs.split(ours, "wait"), device_costs.split(plain, "wait")
        assert layer <= beside[0] and step <= beside[1], (name, device_costs.sources({name: {BATCH: ours}}))


def test_a_verifying_step_runs_nothing_on_the_aicpu_that_a_plain_one_does_not(measured):
    for name, ours, plain in pairs(measured, drafts=True):
        more = set(event[1:3] for event in ours[4] if event[0] == "AICPU") - set(event[1:3] for event in plain[4])
        assert not more, (name, device_costs.sources({name: {BATCH: ours}}))
        layers = [device_costs.split(events, "launch")[0] for events in (ours, plain)]
        assert layers[0] == layers[1], name


def test_every_operator_of_ours_is_in_the_table(measured):
    for name, ours, _ in pairs(measured, drafts=True):
        unknown = [event for event in ours[4] if event[0] == "unknown" and "sam_core" in event[3]]
        assert not unknown, (name, unknown)


def test_with_the_switch_off_the_step_is_the_plain_one(measured):
    """0.23 fills its numbers of accepted tokens by a copy where speculation was asked for, else by a kernel."""
    for name, ours, plain in pairs(measured, drafts=False):
        for kind in ("wait", "AICPU", "unknown"):
            assert device_costs.split(ours, kind) == device_costs.split(plain, kind), (name, kind)
        sums = [sum(n for event, n in events[4].items() if event[0] in ("launch", "copy")) for events in (ours, plain)]
        assert sums[0] == sums[1], name


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
        METER.events = collections.Counter()
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


@pytest.fixture(scope="module")
def mistakes():
    code = {name: line for name, (line, _) in MISTAKES.items()} | MIXED
    environment = variables("metered")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(code), env=environment, capture_output=True, text=True, cwd=HERE
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


def test_each_row_of_the_table_has_a_source():
    import csv

    with (HERE.parent / "patches/npu/operators.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 300
    for row in rows:
        assert row["unit"] in ("AiCore", "AICPU", "view", "host", "unknown"), row
        assert row["source"] or row["unit"] == "unknown", row
