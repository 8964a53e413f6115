# SPDX-License-Identifier: Apache-2.0
"""The functions of verl that method `sam` relies on; their sources are checked before any is rebound.

`python -m sam_core.engines.verl.hooks [FOLDER]` checks the installed verl, or another copy of its package, and prints
each hook. verl is not imported. To support a new release, begin with hooks.txt.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

from sam_core.engines import hooks

RELEASES = ("0.9.1",)
"""Releases of verl in which all hooks fit, ascending."""
SERVER = "workers/rollout/vllm_rollout/vllm_async_server.py"
MANAGER = "workers/rollout/llm_server.py"
AGENTS = "experimental/agent_loop/agent_loop.py"
AGENTS_V1 = "trainer/ppo/v1/agent_loop_tq.py"
TRAINER_V1 = "trainer/ppo/v1/trainer_base.py"
TRAINER = "trainer/ppo/ray_trainer.py"
ONE_STEP_OFF = "experimental/one_step_off_policy/ray_trainer.py"
FULLY_ASYNC = "experimental/fully_async_policy/fully_async_rollouter.py"
METRICS = "utils/debug/metrics.py"
CONFIG = "workers/config/rollout.py"

HOOKS = hooks.read_table(Path(__file__).with_name("hooks.txt"))


def is_patched(folder: Path) -> bool:
    """Whether this copy of verl's package has this project's patches for method sam."""
    tree = hooks.tree(folder / "workers" / "config" / "rollout.py")
    return tree is not None and any(isinstance(each, ast.FunctionDef) and each.name == "uses_sam" for each in tree.body)


VERL = hooks.Hooks("verl", "verl", RELEASES, HOOKS, "workers", is_patched)


@cache
def check(folder: Path, version: str) -> None:
    """Raise ValueError, one sentence, unless all hooks fit this copy of verl's package."""
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config"
    VERL.check(folder, version, f"install verl {RELEASES[-1]}, or leave {key} out")


if __name__ == "__main__":
    sys.exit(VERL.main("sam_core.engines.verl.hooks"))
