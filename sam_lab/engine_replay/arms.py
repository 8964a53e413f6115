# SPDX-License-Identifier: Apache-2.0
"""The compared drafters, each with the name of its method in vLLM's runner."""

from __future__ import annotations

import copy
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sam_core.engines.vllm import make_proposer
from sam_core.switch import AutoSwitch, BatchSwitch

from sam_lab.cli import LabError

ARMS = ("plain", "off", "ngram", "suffix", "batch", "auto")
ASYNC = "@async"
"""Suffix of the arms whose engine schedules asynchronously."""
COMPILED = Path(__file__).resolve().parents[2] / ".cache" / "peers"
"""Where `make bench` builds arctic-inference."""
FIXED = re.compile(r"batch:([1-9][0-9]*):([1-9][0-9]*)")
ARTICLE = (3, 8)
"""Tokens per draft and threshold of the article."""


def check(arm: str) -> None:
    """Raise LabError if there is no such arm."""
    name = arm.removesuffix(ASYNC)
    if arm.endswith(ASYNC) and name in ("ngram", "suffix"):
        raise LabError(f"arm {arm!r}: vLLM schedules synchronously with {name}")
    if name not in ARMS and not FIXED.fullmatch(name):
        raise LabError(f"unknown arm {arm!r}: choose from {', '.join(ARMS)} and batch:K:THRESHOLD")


def speculates(arm: str) -> bool:
    return arm.removesuffix(ASYNC) != "plain"


def may_draft(arm: str) -> bool:
    return arm.removesuffix(ASYNC) not in ("plain", "off")


def missing_reason(arm: str) -> str | None:
    """Why an arm cannot run here, or None."""
    if arm != "suffix":
        return None
    builds = sorted(COMPILED.glob(f"arctic-inference-*-{sys.implementation.cache_tag}"))
    sys.path.extend(str(build) for build in builds[-1:] if str(build) not in sys.path)
    if importlib.util.find_spec("arctic_inference") is None:
        return "vLLM's suffix method needs the package arctic-inference: install it, or run `make bench` once"
    return None


def make(arm: str, runner: Any, k: int, sam: dict[str, Any], clock: Callable[[], float]) -> tuple[str, Any] | None:
    """vLLM's name of the method and a new drafter; None for `plain`.

    Args:
        runner: vLLM's, of an engine that speculates with k tokens.
        k: maximum draft tokens of a request in `auto` and `suffix`.
        sam: options of the proposer other than the switch.
        clock: the clock by which auto times steps.
    """
    arm = arm.removesuffix(ASYNC)
    if arm == "plain":
        return None
    if arm in ("ngram", "suffix"):
        return arm, _peer(arm, runner.vllm_config)
    switch: dict[str, Any] = {"switch": "auto"}
    if arm != "auto":
        k, threshold = fixed_switch(arm)
        switch = {"switch": "batch", "threshold": threshold}
    vllm_config, speculative = copy.copy(runner.vllm_config), copy.copy(runner.speculative_config)
    speculative.num_speculative_tokens, speculative.sam = k, sam | switch
    vllm_config.speculative_config = speculative
    drafter = make_proposer(vllm_config, runner)
    if isinstance(drafter.switch, AutoSwitch):
        drafter.switch.clock = clock
    elif isinstance(drafter.switch, BatchSwitch) and arm == "off":
        drafter.switch.threshold = 0
    return "sam", drafter


def fixed_switch(arm: str) -> tuple[int, int]:
    """Tokens per draft and threshold of `batch:K:THRESHOLD`; for other arms the article's."""
    fixed = FIXED.fullmatch(arm)
    return (int(fixed[1]), int(fixed[2])) if fixed else ARTICLE


def _peer(arm: str, vllm_config: Any) -> Any:
    config = vllm_config.speculative_config
    most = config.num_speculative_tokens
    maker: Callable[[Any], Any]
    if arm == "ngram":
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        maker = NgramProposer
        config.prompt_lookup_min, config.prompt_lookup_max, config.num_speculative_tokens = 2, 5, ARTICLE[0]
    else:
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        maker = SuffixDecodingProposer
    try:
        return maker(vllm_config)
    finally:
        config.num_speculative_tokens = most
