# SPDX-License-Identifier: Apache-2.0
"""The arms of both model runners: an exchangeable drafter on the first, an engine for each arm on the second."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sam_core.engines.vllm import make_proposer
from sam_core.switch import AutoSwitch, BatchSwitch

from sam_lab.arms import Arm

SYNCHRONOUS = ["plain", "off", "ngram", "suffix", "batch", "batch:K:THRESHOLD", "auto"]
ASYNCHRONOUS = [f"{form}@async" for form in SYNCHRONOUS if form not in ("ngram", "suffix")]
FORMS = {False: SYNCHRONOUS + ASYNCHRONOUS, True: ["plain", "ngram_gpu:K", "sam:K", "schedule", "auto"]}
"""Forms of the arms' names, by whether the second runner is driven."""
COMPILED = Path(__file__).resolve().parents[2] / ".cache" / "peers"
"""Where `make bench` builds arctic-inference."""
ARTICLE = (3, 8)
"""Tokens per draft and threshold of the article."""


def missing_reason(arm: Arm) -> str | None:
    """Why an arm cannot run here, or None."""
    if arm.method != "suffix":
        return None
    builds = sorted(COMPILED.glob(f"arctic-inference-*-{sys.implementation.cache_tag}"))
    sys.path.extend(str(build) for build in builds[-1:] if str(build) not in sys.path)
    if importlib.util.find_spec("arctic_inference") is None:
        return "vLLM's suffix method needs the package arctic-inference: install it, or run `make bench` once"
    return None


def make(arm: Arm, runner: Any, k: int, sam: dict[str, Any], clock: Callable[[], float]) -> tuple[str, Any] | None:
    """For the first runner, vLLM's name of the method and a new drafter; None for `plain`.

    Args:
        runner: vLLM's, of an engine that speculates with k tokens.
        k: maximum draft tokens of a request in `auto` and `suffix`.
        sam: options of the proposer other than the switch.
        clock: the clock by which auto times steps.
    """
    if arm.method == "plain":
        return None
    if arm.method in ("ngram", "suffix"):
        return arm.method, _peer(arm.method, runner.vllm_config)
    switch: dict[str, Any] = {"switch": "auto"}
    if arm.method != "auto":
        k, threshold = fixed_switch(arm)
        switch = {"switch": "batch", "threshold": threshold}
    vllm_config, speculative = copy.copy(runner.vllm_config), copy.copy(runner.speculative_config)
    speculative.num_speculative_tokens, speculative.sam = k, sam | switch
    vllm_config.speculative_config = speculative
    drafter = make_proposer(vllm_config, runner)
    if isinstance(drafter.switch, AutoSwitch):
        drafter.switch.clock = clock
    elif isinstance(drafter.switch, BatchSwitch) and arm.method == "off":
        drafter.switch.threshold = 0
    return "sam", drafter


def fixed_switch(arm: Arm) -> tuple[int, int]:
    """Tokens per draft and threshold of `batch:K:THRESHOLD`; for other arms the article's."""
    return (arm.lengths[0], arm.threshold) if arm.threshold else ARTICLE


def speculative_config(arm: Arm, k: int, max_seqs: int, verify: str) -> dict[str, Any] | None:
    """For the second runner, vLLM's speculative_config of an arm; None for `plain`.

    Args:
        k: maximum draft tokens of a request in `auto`.
        max_seqs: maximum concurrent requests.
        verify: option of method sam.
    """
    if arm.method == "plain":
        return None
    if arm.method == "ngram_gpu":
        return {"method": arm.method, "num_speculative_tokens": arm.lengths[0]}
    config: dict[str, Any] = {"method": "sam", "num_speculative_tokens": k, "sam": {"verify": verify}}
    if arm.method == "sam":
        config["num_speculative_tokens"], config["sam"]["threshold"] = arm.lengths[0], max_seqs
    elif arm.method == "auto":
        config["sam"]["switch"] = "auto"
    else:
        from sam_core.engines.vllm.plugin.config import by_batch_size
        from sam_core.options import MAX_K

        config["num_speculative_tokens"], config["sam"]["switch"] = MAX_K, "batch"
        config["num_speculative_tokens_per_batch_size"] = by_batch_size(MAX_K)
    return config


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
