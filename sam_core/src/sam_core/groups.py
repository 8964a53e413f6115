# SPDX-License-Identifier: Apache-2.0
"""Groups of requests that share drafts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, TypeAlias

from sam_core import BY_PROMPT

GroupKey: TypeAlias = bytes | Literal["by_prompt"] | None
"""A group as `Pool.open` takes it. BY_PROMPT: the requests with the same prompt. bytes: the requests with this name;
one whose prompt begins with the text of an ended one continues that text. None: no other request."""


class Group:
    """The group of a request.

    Args:
        prompt_ids: the tokens of its prompt, None if they are unknown.
        name: the group's name, if it has one.
    """

    def __init__(self, prompt_ids: Sequence[int] | None, name: bytes | None = None) -> None:
        self.key: GroupKey
        self._identity: Sequence[int]
        if name is not None:
            self.key = self._identity = name
        elif prompt_ids is not None:
            self.key, self._identity = BY_PROMPT, prompt_ids
        else:
            self.key, self._identity = None, ()

    @functools.cached_property
    def number(self) -> int:
        """Equal for equal groups in every process and run, as saved routes rely on it. A collision only costs speed."""
        return hash(tuple(self._identity))
