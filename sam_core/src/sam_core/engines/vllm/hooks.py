# SPDX-License-Identifier: Apache-2.0
"""The functions of vLLM that method `sam` relies on in the second runner.

Their sources are checked before any is rebound.

`python -m sam_core.engines.vllm.hooks [FOLDER]` checks the installed vLLM, or another copy of its package, and prints
each hook. vLLM is not imported. To support a new release, begin with hooks.txt.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

from sam_core.engines import hooks
from sam_core.engines.hooks import Hook

RELEASES = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""Releases of vLLM in which all hooks fit, ascending."""
WHOLE = "0.31"
"""The newest release that verl 0.9.1 can be installed with."""

HOOKS = hooks.read_table(Path(__file__).with_name("hooks.txt"))
(LOGPROBS,) = (hook for hook in HOOKS if hook.name == "_get_logprobs_tensors")
STATES = Hook(
    "v1/worker/gpu/model_states/mamba_hybrid.py",
    "MambaHybridModelState",
    "prepare_attn",
    "self input_batch",
    ("num_draft_tokens_per_req = np.zeros(input_batch.num_reqs, np.int32)",),
)
"""Up to 0.31 a step without drafts after accepted ones reads the wrong state of a layer that keeps one."""


def is_patched(folder: Path) -> bool:
    """Whether this copy of vLLM's package has this project's patches for method sam."""
    tree = hooks.tree(folder / "config" / "speculative.py")
    return tree is not None and any(
        isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id == "sam"
        for owner in tree.body
        if isinstance(owner, ast.ClassDef) and owner.name == "SpeculativeConfig"
        for field in owner.body
    )


VLLM = hooks.Hooks("vLLM", "vllm", RELEASES, HOOKS, "config", is_patched)


@cache
def check(folder: Path, version: str) -> None:
    """Raise ValueError, one sentence, unless all hooks fit this copy of vLLM's package."""
    VLLM.check(folder, version, f"install vLLM {nearest(version)}, or leave speculative_config out")


def nearest(version: str) -> str:
    """The release to install instead of this version: the last of RELEASES if it is newer than that, else WHOLE."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    newest = tuple(map(int, RELEASES[-1].split(".")))
    return RELEASES[-1] if numbers and tuple(map(int, numbers.groups())) > newest else WHOLE


if __name__ == "__main__":
    sys.exit(VLLM.main("sam_core.engines.vllm.hooks"))
