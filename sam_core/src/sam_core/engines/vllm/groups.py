# SPDX-License-Identifier: Apache-2.0
"""Groups of vLLM's requests; the requests of a group share drafts."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from sam_core.groups import Group

EXTRA_ARG = "sam_group"
"""Key of `SamplingParams.extra_args` under which a request names its group, as a string."""
SALT_ARG = "sam_salt"
"""Key of `SamplingParams.extra_args` under which workers find the digest of a request's cache_salt."""


def pass_salt(request: Any) -> None:
    """Pass the cache_salt of a Request or EngineCoreRequest to the workers, which vLLM does not do.

    Call this before the request is scheduled. A client's own SALT_ARG is dropped.
    """
    if (params := request.sampling_params) is not None:
        passed = {key: value for key, value in (params.extra_args or {}).items() if key != SALT_ARG}
        if (salt := request_salt(request)) is not None:
            passed[SALT_ARG] = salt
        params.extra_args = passed or None


def request_salt(state: Any) -> str | None:
    """A digest of the request's cache_salt, or None. Requests with different digests share nothing.

    Args:
        state: as for `request_group`.
    """
    params = state.sampling_params
    if params is None:
        return None
    if hasattr(state, "cache_salt"):
        salt = state.cache_salt
        return hashlib.blake2b(_encoded(salt), digest_size=16).hexdigest() if salt else None
    digest: str | None = (params.extra_args or {}).get(SALT_ARG)
    return digest


def request_group(state: Any) -> Group:
    """The group of a request: the one that it names, otherwise that of its prompt's tokens and images.

    A prompt of embeddings, whose tokens are unknown, has no group. Requests with different cache_salts are in different
    groups. Requests that name the same group share drafts whatever their prompts are; a request whose prompt begins
    with the text of an ended one continues that text, unless it has a cache_salt.

    Args:
        state: vLLM's CachedRequestState, NewRequestData or EngineCoreRequest.
    """
    params = state.sampling_params
    name = (params.extra_args or {}).get(EXTRA_ARG) if params else None
    salt = request_salt(state)
    salted = b"" if salt is None else f"salt {salt} ".encode()
    if name is not None:
        return Group(None, salted + _encoded(f"name {name}"))
    if getattr(state, "prompt_embeds", None) is not None:
        return Group(None)
    prompt = state.prompt_token_ids
    if not state.mm_features and not salted:
        return Group(prompt)
    digest = hashlib.blake2b(array("i", prompt or ()).tobytes(), digest_size=16)
    for feature in state.mm_features or ():
        digest.update(_encoded(f" {feature.identifier}"))
    return Group(prompt, salted + b"images " + digest.digest())


def _encoded(text: Any) -> bytes:
    """The bytes of any value that a client gave."""
    return str(text).encode("utf-8", "surrogatepass")
