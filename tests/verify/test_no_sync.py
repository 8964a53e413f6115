# SPDX-License-Identifier: Apache-2.0
"""Verification does not wait for the device, and its number of operations does not grow with the batch."""

from types import SimpleNamespace

import pytest
import torch
from sam_core.engines.vllm import sampling
from torch.utils._python_dispatch import TorchDispatchMode

from sam_core import noise, verify

V = 300


class Count(TorchDispatchMode):
    """Counts the operations that torch dispatches."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def steps(counts, device, greedy="none"):
    """Return the functions of a step by name. greedy: whether none, some or all requests are greedy."""
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
        given = SimpleNamespace(**vars(metadata), generators=generators)
        return sampling.verify_step(logits.clone(), drafts, counts, given, lambda logits, k, p: logits)[0]

    return {
        "rejection": lambda: step({}),
        "rejection, own generators": lambda: step({1: None, 3: None}),  # torch's generator for the device
        "seeded": lambda: step(noise.Noise(range(batch), range(batch), counts, device)),
        "per_row": lambda: verify.per_row(metadata.temperature, counts),
    }


@pytest.mark.parametrize("counts", [[3, 1, 2, 3], [3] * 4, [0, 3, 1, 2]], ids=str)
@pytest.mark.parametrize("greedy", ["none", "some", "all"])
def test_nothing_waits_for_the_device(counts, greedy, monkeypatch):
    """Meta tensors have no values, so an operation fails if it reads a value or needs one to compute a shape."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # pinning needs an accelerator
    for name, step in steps(counts, "meta", greedy).items():
        assert step().device.type == "meta", name


def test_the_number_of_operations_is_constant():
    found = {}
    for batch in (4, 8, 64):
        for name, step in steps([3] * batch, "cpu").items():
            step()  # fills the caches
            with Count() as counted:
                step()
            found.setdefault(name, set()).add(counted.count)
    assert all(len(counts) == 1 for counts in found.values()), found
    assert max(found["rejection"]) <= 45
