# SPDX-License-Identifier: Apache-2.0
"""What vLLM's arguments and configuration say about speculation and sampling."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from sam_core.options import VERIFY, Options, check_choice


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
        return (speculative.sam or {}).get("verify", Options.verify)
    mode = (vllm_config.additional_config or {}).get("sam_verify", Options.verify)
    check_choice("additional_config.sam_verify", mode, VERIFY)
    return mode


def replica_history(engine_args: dict[str, Any], replica: int) -> None:
    """Give one of several engines with the same arguments its own folder inside that of option `history`.

    Replaces `speculative_config` in `engine_args` and leaves the old value unchanged; arguments that the engine will
    refuse are left as they are.
    """
    speculative = speculative_config(engine_args)
    sam = speculative.get("sam")
    folder = sam.get("history") if isinstance(sam, Mapping) else None
    if isinstance(folder, str):
        engine_args["speculative_config"] = {**speculative, "sam": {**sam, "history": f"{folder}/replica-{replica}"}}
