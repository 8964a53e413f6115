# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict, final

import numpy as np
import numpy.typing as npt

Int32: TypeAlias = npt.NDArray[np.int32]  # or any other C-contiguous, aligned int32 buffer
Tokens: TypeAlias = Int32 | Sequence[int]

class Drafted(TypedDict):
    drafts: int
    drafted_tokens: int

class BySource(TypedDict):
    request: Drafted
    group: Drafted

class Stats(TypedDict):
    slots_open: int
    groups: int
    tokens: int
    bytes_used: int
    memory_bytes: int
    appended: int
    drafts: int
    drafted_tokens: int
    by_source: BySource
    evicted_groups: int
    exhausted: int

BY_PROMPT: Final = "by_prompt"

@final
class Pool:
    """Requests that draft from their own text and from the answers to the same prompt.

    A draft continues the longest suffix of a slot's text that stood somewhere before. Where that is, is up to the
    sources: ``request`` is the slot's own prompt and answer, ``group`` the texts of its group, finished or running.
    The source with the longer match drafts, on a tie ``request``. If the match stood in several places, the rule
    chooses: ``newest`` the place whose following token came last, ``oldest`` the one whose following token came first
    (the method of the article on SAM drafts for RL training). A draft ends where the copied text ends.

    Where memory is exceeded, the groups without open slots go first, the one closed longest ago before the others.
    After that a request that needs more stops drafting for good; it raises nothing and is counted in ``exhausted``.

    Calls from several threads wait for each other; the GIL is released while they work. The same calls give the same
    drafts on every platform. A pool can be neither pickled nor copied; a forked child has a pool of its own that starts
    as a copy, provided no other thread was inside a call.

    Args:
        memory_bytes: limit for texts and indexes, in bytes; the table of slots (about 100 bytes each) is not counted.
        rule: ``"newest"`` or ``"oldest"``.
        sources: ``"request"``, ``"group"`` or both; what is not named is not indexed. With ``group`` alone a slot also
            drafts from its own text, which is part of its group.

    Raises:
        ValueError: negative memory_bytes, unknown rule or source, no source.
        TypeError: an argument of another type.
    """

    def __new__(
        cls,
        memory_bytes: int = 1 << 30,
        rule: Literal["newest", "oldest"] = "newest",
        sources: Iterable[Literal["request", "group"]] = ("request", "group"),
    ) -> Pool: ...
    def open(self, prompt_ids: Tokens, group: bytes | Literal["by_prompt"] | None = "by_prompt") -> int:
        """Open a slot for a prompt and return its number. Takes time proportional to the prompt.

        Args:
            prompt_ids: int32 buffer of shape [P] or a sequence of P integers, 0 .. 2**31 - 1; may be empty.
            group: ``BY_PROMPT``: slots with equal prompts form a group; bytes: slots with this name form a group,
                whatever their prompts, which are sources of drafts too; None: a private slot without a group.

        Returns:
            A number from 0 on that may be used again after `close`.

        Raises:
            ValueError: a token id outside the range, or a buffer that is not one-dimensional.
            TypeError: prompt_ids of another dtype or type, or another group.
            BufferError: a buffer that is not contiguous and aligned.
            MemoryError: the table of slots cannot grow.
        """

    def step(self, slots: Int32, tokens: Int32, counts: Int32, k: int | Int32, out: Int32, lengths: Int32) -> None:
        """Append tokens to a batch of slots, then write a draft for each.

        All rows are appended, in order, before the first draft, so slots of one group see each other's new tokens.

        Args:
            slots: int32 [B], open slots, each at most once.
            tokens: int32 [sum(counts)], the new tokens row after row, 0 .. 2**31 - 1.
            counts: int32 [B], how many tokens each row gets, 0 or more.
            k: the longest draft wanted, 0 .. K, for all rows or as int32 [B]; 0 only appends.
            out: writable int32 [B, K]; row i receives its draft in out[i, : lengths[i]], the rest stays as it was.
            lengths: writable int32 [B], receives the lengths of the drafts, 0 .. k.

        Raises:
            ValueError: a value or a shape that is none of these. Nothing has changed then.
            TypeError: something that is no int32 buffer. Nothing has changed then.
            BufferError: a buffer that is not contiguous, aligned or, for the last two, writable. Nothing has changed.
        """

    def close(self, slot: int, keep: bool = True) -> None:
        """Close a slot.

        Args:
            slot: an open slot.
            keep: True: the text stays a source of its group. False: the group forgets it as if it had never been; this
                rebuilds the group's index in time proportional to its tokens, unless the slot had no answer yet.

        Raises:
            ValueError: the slot is not open.
            TypeError: slot is no integer.
        """

    def drop(self, group: bytes | Tokens) -> bool:
        """Free a group, given by its name or by its prompt, and return whether there was one.

        Raises:
            ValueError: the group has open slots, or a token id lies outside the range.
            TypeError: neither bytes nor token ids.
        """

    def stats(self) -> Stats:
        """Return a new dict.

        ``slots_open``, ``groups`` (with open slots or lingering), ``tokens`` held in texts, ``bytes_used`` of
        ``memory_bytes`` are the state now. Counted since the pool was made: ``appended`` tokens given to `step`,
        ``drafts`` (rows with a draft), ``drafted_tokens``, both again ``by_source``, ``evicted_groups``, and
        ``exhausted`` (requests that stopped drafting for lack of memory).
        """

    def _validate(self) -> str | None:
        """Check every invariant; return None or a sentence that says which is broken. For tests."""

    def _work(self) -> int:
        """Return the number of states visited and rotations made so far. For tests."""

    def __reduce__(self) -> Any: ...
