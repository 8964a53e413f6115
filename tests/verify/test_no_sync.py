# SPDX-License-Identifier: Apache-2.0
"""Nothing waits for the device, and the number of operations does not grow with the batch."""

from types import SimpleNamespace

import pytest
import torch
from sam_core.engines.vllm import sampling
from torch.utils._python_dispatch import TorchDispatchMode

from sam_core import noise, verify

V = 300
WAITS = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "repeat_interleave", "_unique2", "equal"}


class Watch(TorchDispatchMode):
    """Count operations; raise at one whose result's shape or value the host must know."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        name = function.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for arg in args
            if isinstance(arg, (list, tuple))
            for index in arg
        )
        if name in WAITS or masks:
            raise AssertionError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


def steps(counts, device, greedy="none", generators=None):
    """All functions of a step, ready to call, by name. greedy: none of the requests, some or all."""
    batch, rows = len(counts), sum(counts) + len(counts)
    drafts = torch.randint(0, V, (sum(counts),), dtype=torch.int32, device=device)
    logits = torch.randn(rows, V, device=device)
    metadata = SimpleNamespace(
        all_greedy=greedy == "all",
        all_random=greedy == "none",
        temperature=torch.arange(batch, device=device) % 2 if greedy == "some" else torch.ones(batch, device=device),
        top_k=torch.ones(batch, dtype=torch.int32, device=device),
        top_p=None,
        logitsprocs=SimpleNamespace(argmax_invariant=[SimpleNamespace(min_p_count=1, apply=lambda rows: rows)]),
    )

    def step(generators):
        def run():
            given = SimpleNamespace(**{**vars(metadata), "generators": generators()})
            return sampling.verify_step(logits.clone(), drafts, counts, given, lambda logits, k, p: logits)[0]

        return run

    return {
        "rejection": step(lambda: generators or {}),
        "seeded": step(lambda: noise.Noise(range(batch), range(batch), counts, device)),
        "seeded_sample": lambda: noise.seeded_sample(logits.softmax(1), drafts.new_ones(rows), drafts.new_ones(rows)),
        "per_row": lambda: verify.per_row(metadata.temperature, counts),
    }


@pytest.mark.parametrize("greedy", ["none", "some", "all"])
def test_no_value_is_read_by_the_host(greedy, monkeypatch):
    """A meta tensor has no values: whoever reads one fails, .tolist() and Python conditions too."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # which takes an accelerator
    for name, step in steps([3, 1, 2, 3], "meta", greedy).items():
        assert step().device.type == "meta", name


@pytest.mark.parametrize("greedy", ["none", "some", "all"])
def test_no_operation_waits(greedy):
    own = {1: torch.Generator(), 3: torch.Generator()}
    for counts in ([3] * 4, [0, 3, 1, 2]):
        for generators in ({}, own):
            for name, step in steps(counts, "cpu", greedy, generators).items():
                with Watch() as watch:
                    step()
                assert watch.count > 5 or name == "per_row"


def test_the_number_of_operations_is_constant():
    found = {}
    for batch in (2, 8, 64):
        for name, step in steps([3] * batch, "cpu").items():
            for kept in (verify.rows_of, noise._steps, noise._arange):
                kept.cache_clear()
            with Watch() as watch:
                step()
            found.setdefault(name, set()).add(watch.count)
    assert all(len(counts) == 1 for counts in found.values()), found
    assert max(found["rejection"]) <= 45
