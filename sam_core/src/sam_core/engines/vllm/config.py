# SPDX-License-Identifier: Apache-2.0
"""What vLLM's arguments and configuration say about speculation and sampling."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Mapping
from typing import Any

from sam_core.options import VERIFY, Options, check_choice

_warn_once = functools.cache(logging.getLogger("vllm.sam_core").warning)


def speculative_config(engine_args: Mapping[str, Any]) -> Mapping[str, Any]:
    """An engine's `speculative_config`, given as a mapping or as its JSON; empty if it is neither."""
    speculative = engine_args.get("speculative_config")
    if isinstance(speculative, str):
        with contextlib.suppress(ValueError):
            speculative = json.loads(speculative)
    return speculative if isinstance(speculative, Mapping) else {}


def sampling_mode(vllm_config: Any) -> str:
    """How an engine of this VllmConfig samples: `rejection` (the engine's own way) or `seeded`.

    Option `verify` of method sam; without speculation, for comparisons, `sam_verify` of the additional_config. Raises
    ValueError for an unknown mode in the latter.
    """
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method == "sam":
        return verify_mode(speculative.sam)
    mode: str = (vllm_config.additional_config or {}).get("sam_verify", Options.verify)
    check_choice("additional_config.sam_verify", mode, VERIFY)
    return mode


def verify_mode(sam: Mapping[str, Any] | None) -> str:
    """Option `verify` among those of method sam."""
    mode: str = (sam or {}).get("verify", Options.verify)
    return mode


def ignore_seed(sam: Mapping[str, Any] | None, params: Any) -> None:
    """Take the seed from a request's SamplingParams if method sam verifies by rejection sampling.

    Drafts may come from an earlier answer to the same prompt. If that had the same seed, they depend on the random
    numbers that would verify them, so the answer would not follow the model's distribution.

    Args:
        sam: the options of method sam.
        params: the engine's own copy, which is changed.
    """
    if params.seed is not None and verify_mode(sam) == "rejection":
        params.seed = None
        _warn_once("seeds of requests have no effect with method sam and verify: rejection; use verify: seeded")


def replica_history(engine_args: dict[str, Any], replica: int) -> None:
    """Give one of several engines with the same arguments its own folder inside that of option `history`.

    Replaces `speculative_config` in `engine_args` and leaves the old value unchanged; arguments that the engine will
    refuse are left as they are.
    """
    speculative = speculative_config(engine_args)
    sam = speculative.get("sam")
    if isinstance(sam, Mapping) and isinstance(folder := sam.get("history"), str):
        engine_args["speculative_config"] = {**speculative, "sam": {**sam, "history": f"{folder}/replica-{replica}"}}
