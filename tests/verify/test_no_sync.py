# SPDX-License-Identifier: Apache-2.0
"""Nothing waits for the device, and the number of operations does not grow with the batch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sam_core import verify

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


def steps(counts, device, greedy=False, draft_probs=False, generators=None):
    """All functions of a step, ready to call, by name."""
    batch, tokens = len(counts), sum(counts)
    drafts = torch.randint(0, V, (tokens,), dtype=torch.int32, device=device)
    probs = torch.randn(tokens, V, device=device).softmax(1)
    q_of = torch.randn(tokens, V, device=device).softmax(1) if draft_probs else None
    bonus_probs = torch.randn(batch, V, device=device).softmax(1)
    bonus = torch.randint(0, V, (batch, 1), dtype=torch.int32, device=device)
    is_greedy = torch.arange(batch, device=device) % 2 == 0 if greedy == "some" else greedy

    def rejection():
        draws = verify.draw(counts, generators or {}, V, probs.device)
        return verify.rejection_sample(drafts, counts, q_of, probs, bonus, is_greedy, draws)

    def seeded():
        noise = verify.Noise(range(batch), range(batch), counts, device)
        return noise.verify(probs, drafts, noise.sample(bonus_probs)[:, None], is_greedy)

    return {
        "rejection": rejection,
        "seeded": seeded,
        "seeded_sample": lambda: verify.seeded_sample(probs, drafts.long(), drafts),
        "per_draft": lambda: verify.per_draft(bonus, counts),
    }


@pytest.mark.parametrize("greedy", [False, True, "some"])
@pytest.mark.parametrize("draft_probs", [False, True])
def test_no_value_is_read_by_the_host(greedy, draft_probs, monkeypatch):
    """A meta tensor has no values: whoever reads one fails, .tolist() and Python conditions too."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # which takes an accelerator
    for name, step in steps([3, 1, 2, 3], "meta", greedy, draft_probs).items():
        assert step().device.type == "meta", name


@pytest.mark.parametrize("greedy", [False, True, "some"])
def test_no_operation_waits(greedy):
    own = {1: torch.Generator(), 3: torch.Generator()}
    for counts in ([3] * 4, [0, 3, 1, 2]):
        for generators in ({}, own):
            for name, step in steps(counts, "cpu", greedy, True, generators).items():
                with Watch() as watch:
                    step()
                assert watch.count > 5 or name == "per_draft"


def test_the_number_of_operations_is_constant():
    found = {}
    for batch in (2, 8, 64):
        for name, step in steps([3] * batch, "cpu").items():
            for kept in (verify._rows, verify._steps, verify._arange):
                kept.cache_clear()
            with Watch() as watch:
                step()
            found.setdefault(name, set()).add(watch.count)
    assert all(len(counts) == 1 for counts in found.values()), found
    assert max(found["rejection"]) <= 40


def test_the_watch_sees():
    mask = torch.tensor([True, False])
    for waiting in (mask.any().__bool__, mask.nonzero, lambda: mask[mask], mask.sum().item):
        with pytest.raises(AssertionError, match="waits for the device"), Watch():
            waiting()
    with pytest.raises(Exception):
        torch.ones(2, device="meta").tolist()
