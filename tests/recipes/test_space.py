# SPDX-License-Identifier: Apache-2.0
"""A run's needs of disk and host memory, compared with figures worked out by hand, and the runs that are refused."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_rl import config, layout, space
from llm_rl.errors import UserError
from llm_rl.shape import SHAPES

QWEN3 = Path(layout.__file__).parent / "qwen3"


def needs(name, model, *overrides):
    return space.needs(config.load(QWEN3 / f"{name}.yaml", ["pin_set=vllm-0.23", *overrides]), SHAPES[model])


@pytest.mark.parametrize(
    ("name", "model", "profile", "checkpoint"),
    [
        ("dapo_qwen3_32b_32die", "Qwen3-32B", "recommended", 393),
        ("dapo_qwen3_32b_32die", "Qwen3-32B", "article", 459),
        ("dapo_qwen3_235b_a22b_128die", "Qwen3-235B-A22B", "article", 3291),
    ],
)
def test_checkpoints(name, model, profile, checkpoint):
    kept = needs(name, model, f"profile={profile}", "checkpoints.every=5", "checkpoints.keep=2", "steps=100")
    assert round(kept.checkpoint) == checkpoint and kept.checkpoints == 5
    assert needs(name, model, "checkpoints.every=5", "steps=12").checkpoints == 2
    assert needs(name, model, "checkpoints.every=0").disk == 0


def test_a_small_disk_is_refused_and_what_a_run_has_counts(tmp_path, monkeypatch):
    kept = space.Needs(checkpoint=400, checkpoints=5, memory=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1999e9))
    with pytest.raises(UserError, match="on a disk with 1,999 GB free, the run needs 2,000: .* lower checkpoints.keep"):
        space.check(kept, tmp_path / "run" / "deep")
    (tmp_path / "checkpoint").touch()
    os.truncate(tmp_path / "checkpoint", 2 * 10**9)
    space.check(kept, tmp_path)


def test_a_host_without_the_memory_is_refused(monkeypatch, tmp_path):
    """Ray's object store counts: 30 % of the memory, at most 200 GB, unless the recipe's own Ray has another size."""
    # Pinned weights of sleeping engines, the optimizer, and Megatron's weights of 16 dies.
    assert needs("dapo_qwen3_32b_32die", "Qwen3-32B").memory == pytest.approx(136 + 183 + 61, abs=1)

    def check(total, memory, **store):
        monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 1 << 20, "SC_PHYS_PAGES": total << 10}[name])
        space.check(space.Needs(checkpoint=1, checkpoints=0, memory=memory, **store), tmp_path)

    with pytest.raises(UserError, match=r"the run needs 71 GiB .+ and 30 GiB for Ray's object store"):
        check(100, 71)
    check(100, 69)
    check(100, 71, store=1)
    check(1500, 1300)
