# SPDX-License-Identifier: Apache-2.0
"""Calculate the disk space and host memory that a run needs, and check whether this host has them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from llm_rl import layout
from llm_rl.errors import UserError
from llm_rl.layout import GIB
from llm_rl.recipe import Recipe
from llm_rl.shape import Shape

GB = 10**9
RAY_SHARE, RAY_MOST = 0.3, 200 * GB / GIB
"""Default size of Ray's object store: share of a host's memory, and maximum in GiB (ray_constants.py)."""


@dataclass(frozen=True)
class Needs:
    """What a run needs.

    checkpoint: GB per checkpoint; checkpoints: maximum number on disk; memory: GiB per host, without Python and Ray's
    object store; store: GiB of the object store, None for Ray's default.
    """

    checkpoint: float
    checkpoints: int
    memory: float
    store: float | None = None

    @property
    def disk(self) -> float:
        """GB of all checkpoints; logs are not counted."""
        return self.checkpoint * self.checkpoints

    def lines(self) -> list[str]:
        disk = f"{self.disk:,.0f} GB for {self.checkpoints} checkpoints of {self.checkpoint:,.1f} GB"
        memory = f"{self.memory:,.0f} GiB for offloaded state and sleeping weights"
        return [f"{'run folder':27}{disk}"] * (self.disk > 0) + [f"{'memory per host':27}{memory}"] * (
            self.memory > 0.5
        )


def needs(recipe: Recipe, model: Shape | None) -> Needs | None:
    """The needs of a recipe; None if the model's shape is unknown.

    A checkpoint has float32 weights and Adam's two moments, 12 bytes per parameter; with Megatron also bf16 weights.
    verl keeps the newest `keep` checkpoints and `keep` from before the latest start, and writes the next one before it
    removes the oldest.
    """
    if model is None:
        return None
    size = model.parameters * (14 if recipe.train.backend == "megatron" else 12) / GB
    count = 2 * recipe.checkpoints.keep + 1 if recipe.checkpoints.every else 0
    count = min(count, recipe.steps // recipe.checkpoints.every) if recipe.checkpoints.every else 0
    memory = 0.0
    training = layout.training(recipe, model)
    if recipe.train.optimizer_offload:
        memory += training.host
    if recipe.train.param_offload and recipe.train.backend == "megatron":
        memory += recipe.cluster.dies_per_node * training.weights  # of all devices; gradients are dropped
    memory += training.reference_host
    if recipe.keeps_weights_on_host:
        memory += recipe.cluster.dies_per_node * layout.rollout(recipe, model).pinned
    given = recipe.local_ray.get("object_store_memory")
    return Needs(size, count, memory, None if given is None else given / GIB)


def check(needed: Needs, run_dir: Path) -> None:
    """Raise UserError unless this host has enough memory, and the disk of `run_dir` enough space."""
    folder = run_dir
    while not folder.exists():
        folder = folder.parent
    there = sum(path.lstat().st_size for path in run_dir.rglob("*") if path.is_file()) / GB if run_dir.exists() else 0.0
    free = shutil.disk_usage(folder).free / GB
    if free + there < needed.disk:
        raise UserError(
            f"{run_dir} is on a disk with {free:,.0f} GB free, the run needs {needed.disk - there:,.0f}: free some, "
            "use another --run-dir, or lower checkpoints.keep if it is above 2"
        )
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    store = min(RAY_SHARE * total, RAY_MOST) if needed.store is None else needed.store
    if total < needed.memory + store:
        raise UserError(
            f"this host has {total:,.0f} GiB of memory, the run needs {needed.memory:,.0f} GiB for offloaded state and "
            f"sleeping weights and {store:,.0f} GiB for Ray's object store: use more hosts, or keep the optimizer "
            "state on the devices (train.optimizer_offload=false)"
        )
