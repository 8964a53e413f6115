# SPDX-License-Identifier: Apache-2.0
"""The groups of vLLM's requests, which share drafts."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any, Literal

from sam_core import BY_PROMPT

EXTRA_ARG = "sam_group"
"""Key of `SamplingParams.extra_args` under which a request names its group, as a string."""


def request_group(state: Any) -> bytes | Literal["by_prompt"] | None:
    """The group of a request: the one it names, else that of its prompt's tokens and images.

    None for a prompt of embeddings, whose tokens are unknown.

    Requests of one name share drafts whatever their prompts are, and a request whose prompt begins with the text of an
    ended one continues that text.

    Args:
        state: vLLM's CachedRequestState, NewRequestData or EngineCoreRequest.
    """
    params = state.sampling_params
    name = (params.extra_args or {}).get(EXTRA_ARG) if params else None
    if name is not None:
        return f"name {name}".encode()
    if getattr(state, "prompt_embeds", None) is not None:
        return None
    if not state.mm_features:
        return BY_PROMPT
    digest = hashlib.blake2b(array("i", state.prompt_token_ids or ()).tobytes(), digest_size=16)
    for feature in state.mm_features:
        digest.update(f" {feature.identifier}".encode())
    return b"images " + digest.digest()
