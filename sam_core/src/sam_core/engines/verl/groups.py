# SPDX-License-Identifier: Apache-2.0
"""Names of the groups of verl's rollout requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sam_core.engines.vllm.groups import EXTRA_ARG

TASK_KEYS = ("raw_prompt", "raw_prompt_ids", "agent_name", "tools_kwargs", "interaction_kwargs")
"""Fields of a row of the data set that define its task."""


def group_params(
    row: Mapping[str, Any], validation: bool, extra_args: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Sampling parameters that name the group of all requests for a row: every sample, turn and resumed answer.

    The name is a hash of the task, so it is the same in a later epoch, when verl's `uid` differs. If the task is
    unknown or has more than plain values, such as images, the name is the uid: the answers of one step share drafts,
    without history. A row without uid gets no name. Validation requests have groups of their own.

    Args:
        row: fields of one row of a rollout's batch.
        validation: whether the rollout is for validation.
        extra_args: those that the requests already have. They are kept, including a group that they name.
    """
    task = {key: row[key] for key in TASK_KEYS if key in row}
    try:
        if "multi_modal_data" in row or not {"raw_prompt", "raw_prompt_ids"} & {*row}:
            raise TypeError
        text = json.dumps(task, sort_keys=True, default=_plain)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    except TypeError:
        if row.get("uid") is None:
            return {}
        name = f"uid {row['uid']}"
    return {"extra_args": {EXTRA_ARG: f"validation {name}" if validation else name, **(extra_args or {})}}


def _plain(value: Any) -> Any:
    """Convert an array to a list. Raises TypeError for any other type that JSON lacks."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value)} has no name")
