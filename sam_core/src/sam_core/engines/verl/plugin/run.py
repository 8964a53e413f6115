# SPDX-License-Identifier: Apache-2.0
"""What a run requests of its engines in verl's rollout configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sam_core.engines.vllm.config import names_sam, speculative_config


def engine_arguments(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the vLLM engine, `engine_kwargs.vllm`; empty for another engine.

    `spec_method`, if given, becomes the method of its speculative_config.
    """
    if rollout.get("name") not in (None, "vllm"):
        return {}
    arguments = dict((rollout.get("engine_kwargs") or {}).get("vllm") or {})
    arguments["speculative_config"] = dict(speculative_config(arguments))
    if method := arguments.get("spec_method"):
        arguments["speculative_config"]["method"] = method
    return arguments


def uses_sam(rollout: Mapping[str, Any]) -> bool:
    """Whether the engine has method sam."""
    return names_sam(engine_arguments(rollout).get("speculative_config", {}))


def is_watched(rollout: Mapping[str, Any]) -> bool:
    """Whether the engine has method sam, or is compared with one that has (additional_config.sam_verify is given)."""
    return uses_sam(rollout) or "sam_verify" in (engine_arguments(rollout).get("additional_config") or {})
