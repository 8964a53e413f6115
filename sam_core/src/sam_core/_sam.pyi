# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict, final

import numpy as np
import numpy.typing as npt

Int32: TypeAlias = npt.NDArray[np.int32]  # or any other C-contiguous, aligned int32 buffer
Int64: TypeAlias = npt.NDArray[np.int64]  # or any other C-contiguous, aligned int64 buffer
Float32: TypeAlias = npt.NDArray[np.float32]  # or any other C-contiguous, aligned float32 buffer
Float64: TypeAlias = npt.NDArray[np.float64]  # or any other C-contiguous, aligned float64 buffer
Tokens: TypeAlias = Int32 | Sequence[int]
Path: TypeAlias = str | bytes | os.PathLike[str]
Rule: TypeAlias = Literal["oldest", "newest", "suffix", "blend"]
Source: TypeAlias = Literal["request", "group", "history", "common"]

class Drafted(TypedDict):
    drafts: int
    drafted_tokens: int
    accepted_tokens: int

class BySource(TypedDict):
    request: Drafted
    group: Drafted
    corpus: Drafted
    history: Drafted
    common: Drafted

class Stats(TypedDict):
    slots_open: int
    groups: int
    tokens: int
    bytes_used: int
    memory_bytes: int
    appended: int
    drafts: int
    drafted_tokens: int
    accepted_tokens: int
    by_source: BySource
    history_texts: int
    history_tokens: int
    evicted_groups: int
    evicted_history: int
    exhausted: int

class Saved(TypedDict):
    version: int
    rule: Rule
    sources: list[Source]
    vocab_size: int | None
    tokenizer: str | None
    groups: int
    texts: int
    tokens: int
    bytes: int

BY_PROMPT: Final = "by_prompt"
SOURCES: Final = ("request", "group", "corpus", "history", "common")
"""Names of the sources of drafts by their numbers, as `Pool.step` writes them."""

@final
class Pool:
    """Requests that draft from their own text, from the answers to the same prompt and from a corpus.

    Sources of drafts:
        request: the slot's own prompt and answer.
        group: the texts of its group, finished or running. A group's life begins with its first slot and ends when its
            last one is closed.
        history: the group's kept texts from earlier lives, counted apart. Without ``history`` a group is forgotten when
            its life ends.
        corpus: a file that `build_corpus` wrote.
        common: for ``blend`` only, the token that came most often after the last 5, 3, 2 or 1 tokens, in any slot's
            appended tokens, those of private slots included. These statistics have a fixed size. Like all that a rule
            learns, they are shared by all slots, also without ``common``: then they only name tokens that the slot's
            other sources contain.

    The rule chooses the draft after a match: ``oldest`` copies the text after the first occurrence of the longest match
    (the article on SAM drafts for RL training), ``newest`` after its latest one, ``suffix`` is SuffixDecoding with
    chains, ``blend`` matches again at every token and weights all sources and several match lengths by their past
    success. Each learns the probability of its drafts from the tokens appended after them. Except with ``oldest``,
    matches have at most 64 tokens.

    Indexes are fed in portions, so that no call takes long: a step indexes about 4,000 tokens (a third of that in a
    large index) in addition to the new ones of the slots that draft, or 512 tokens if none does; later steps index the
    rest. A slot drafts from an index that lacks at most 64 tokens at the end of the slot's own text. The index of a
    group begins with its second text, takes the texts of running requests first, then closed ones from the newest to
    the oldest; slots draft from the part that is indexed.

    When the memory limit is reached, the pool frees what is worth least: indexes of closed groups, which are built
    again when needed; older texts of closed groups that rarely recur, whose drafts are rarely accepted or that have
    many texts; texts that fit into no index; request indexes whose text is in the group's index as well; the older
    closed texts in the index of the group with the fewest accepted tokens per byte. A request without memory for its
    index does not draft until there is memory again. Nothing is raised; ``evicted_groups``, ``evicted_history`` and
    ``exhausted`` of `stats` count these cases.

    Calls from several threads wait for each other; the GIL is released while they work. The same calls give the same
    drafts on every platform. A pool can be neither pickled nor copied, and its methods raise RuntimeError in a forked
    child.

    Args:
        memory_bytes: memory limit in bytes, without the table of slots (less than 1 KiB each) and the corpus, which is
            mapped.
        rule: see above.
        sources: ``"request"``, ``"group"`` or both, and ``"history"`` with ``"group"``; others are not indexed. With
            ``group`` alone a slot also drafts from its own text, which is part of its group. Without ``common`` no
            draft contains a token that only other slots' texts have.
        corpus: path of a corpus, an additional source; None: none.
        min_prob: a draft ends before the estimated probability that all of it is accepted falls below this, 0 .. 1.
            Even with 0 a draft ends before this probability falls below 2**-30, or when there is no candidate.
        vocab_size: tokens of the model's vocabulary, 1 .. 2**31; a draft ends before a token of at least this. None:
            unknown.
        tokenizer: fingerprint of the model's tokenizer (see `sam_core.tokenizer`), 16 hexadecimal digits; None:
            unknown. It is saved with the pool, and so is vocab_size.

    Attributes:
        rule, sources: as given.
        min_prob: can be set, for the following calls of `step`.
        num_threads: threads of a `step` with 256 rows or more, one for each 128 rows at most; 1 to 16, at first 1. They
            change no result. Created when first needed, they wait for the next such step until the pool is freed.

    Raises:
        ValueError: memory_bytes too small for any pool, unknown rule or source, no source, history without group,
            min_prob outside its range, or a corpus that is malformed or of another tokenizer or vocabulary.
        TypeError: an argument of another type.
        OSError: the corpus cannot be read.
    """

    def __new__(
        cls,
        memory_bytes: int = 1 << 30,
        rule: Rule = "blend",
        sources: Iterable[Source] = ("request", "group", "history", "common"),
        corpus: Path | None = None,
        min_prob: float = 0.0,
        vocab_size: int | None = None,
        tokenizer: str | None = None,
    ) -> Pool: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def sources(self) -> tuple[Source, ...]: ...
    @property
    def min_prob(self) -> float: ...
    @min_prob.setter
    def min_prob(self, value: float) -> None: ...
    @property
    def num_threads(self) -> int: ...
    @num_threads.setter
    def num_threads(self, value: int) -> None: ...
    def open(
        self, prompt_ids: Tokens, group: bytes | Literal["by_prompt"] | None = "by_prompt", isolated: bool = False
    ) -> int:
        """Open a slot for a prompt and return its number. Later calls index the prompt.

        In a named group, a prompt that begins with a closed text of the group continues that text: an answer that is
        resumed after it was cut short, or the next turn of a conversation. Up to 32 tokens at the end of the text's
        answer may be missing in the prompt; they are forgotten. What followed the text's own prompt remains its answer;
        see `prompt_size`.

        Args:
            prompt_ids: int32 buffer of shape [P] or a sequence of P integers, 0 .. 2**31 - 1; may be empty.
            group: ``BY_PROMPT``: slots with equal prompts form a group; bytes: slots with this name form a group,
                whose prompts may differ; None: a private slot without a group, whose text is in no other slot's index
                (but see source ``common``). The group's first indexed prompt, and each prompt that does not begin with
                it, is a source of drafts too.
            isolated: If True, nothing of the text outlives the slot or reaches other groups: the slot is closed without
                `keep`, the text becomes no history, and the slot neither adds to the source ``common`` nor drafts from
                it. All slots of a group must be isolated, or none.

        Returns:
            A number from 0 on. A closed slot's number is used again only after 64 others were closed.

        Raises:
            ValueError: a token id outside the range, or a buffer that is not one-dimensional.
            TypeError: prompt_ids of another dtype or type, or another group.
            BufferError: a buffer that is not contiguous and aligned.
            MemoryError: the table of slots cannot grow.
            RuntimeError: called in a forked child; so do all methods below.
        """

    def step(
        self,
        slots: Int32,
        tokens: Int32,
        counts: Int32,
        k: int | Int32,
        out: Int32,
        lengths: Int32,
        scores: Float32 | None = None,
        starts: Int32 | None = None,
        sources: Int32 | None = None,
        match_lengths: Int32 | None = None,
        index_later: bool = False,
    ) -> None:
        """Append tokens to a batch of slots, then write a draft for each.

        All rows are appended, in order, before the first draft, so slots of one group see each other's new tokens.

        Args:
            slots: int32 [B], open slots, each at most once.
            tokens: int32 [sum(counts)], the new tokens row after row, 0 .. 2**31 - 1; or with `starts` a table int32
                [B or more, W] with contiguous rows, of which tokens[i, starts[i] : starts[i] + counts[i]] are those of
                row i.
            counts: int32 [B], how many tokens each row gets, 0 or more.
            k: maximum tokens of a draft, 0 .. min(K, 64), for all rows or as int32 [B]; 0 only appends.
            out: writable int32 [B, K]; row i receives its draft in out[i, : lengths[i]], the rest is unchanged.
            lengths: writable int32 [B], receives the lengths of the drafts, 0 .. k.
            scores: writable float32 [B, K], receives the estimated probability that the whole path to a token is
                accepted.
            starts: int32 [B]; None: `tokens` is packed.
            sources: writable int32 [B, K], receives the number in `SOURCES` of the source that each token is from.
            match_lengths: writable int32 [B, K], receives the tokens of the longest match in this source that each
                token continues, drafted tokens before it included; with rules that copy (oldest, newest, suffix) of the
                match that is copied. 0: the token is only frequent there. Group and history are one index, so a match
                in one may stand in the other too.
            index_later: write the drafts before the new tokens are indexed, which takes half of the time of a step.
                `catch_up` indexes them, or the next call. The drafts follow the new tokens, but come from texts without
                them.

        Raises: nothing has changed then.
            ValueError: a wrong value or shape.
            TypeError: an argument that is no buffer of its type.
            BufferError: a buffer that is not contiguous, aligned or, from `out` on, writable.
        """

    def catch_up(self) -> None:
        """Index the tokens of a `step` with index_later; does nothing if that is done."""

    def prompt_size(self, slot: int, /) -> int:
        """Tokens at the start of a slot's text that are its prompt: as opened, or that of the text it continues.

        0 for a slot that stores no text. Raises ValueError: no open slot.
        """

    def append(self, slot: int, tokens: Tokens, /) -> None:
        """Append a sequence or int32 buffer [n] of tokens to one slot; like `step` with k = 0.

        Raises: as `step`.
        """

    def close(self, slot: int, keep: bool = True) -> None:
        """Close a slot.

        Args:
            slot: an open slot.
            keep: whether the text stays a source of its group; if not, the group forgets it, at the latest when its
                life ends.

        Raises ValueError: the slot is not open.
        """

    def drop(self, group: bytes | Tokens) -> bool:
        """Free a group with its history, given by its name or by its prompt, and return whether it existed.

        Raises:
            ValueError: the group has open slots, or a token id lies outside the range.
            TypeError: neither bytes nor token ids.
        """

    def save(self, path: Path) -> None:
        """Save the kept texts of closed slots, if history is a source, and what was learned, to a file of mode 0600.

        The file is written next to `path` and renamed over it, so that `path` is always complete, the old file or the
        new one. Calls from other threads wait only while the texts are listed, not while they are written; the file has
        the state at the call of `save`. Texts that are evicted while they are written keep their memory, beyond
        memory_bytes, until they are written.

        Raises:
            OSError: the file cannot be written; `path` is unchanged.
            MemoryError: no memory for the list, 32 bytes per text, and a copy of what was learned.
        """

    @classmethod
    def load(
        cls,
        path: Path,
        memory_bytes: int = 1 << 30,
        corpus: Path | None = None,
        min_prob: float = 0.0,
        vocab_size: int | None = None,
        tokenizer: str | None = None,
    ) -> Pool:
        """Make a pool with the rule and sources of a saved one, its groups, all closed, and what it had learned.

        Indexes are built when they are needed. Groups that do not fit into memory_bytes are left out, those closed
        longest ago first, and counted in ``evicted_groups``.

        Args:
            path: a file that `save` wrote: no symbolic link, owned by this user and closed to others (mode 0600).
            memory_bytes, corpus, min_prob: as for `Pool`.
            vocab_size, tokenizer: as for `Pool`; None: those of the file.

        Raises:
            ValueError: a file that is not a saved pool, not private, damaged, from another version, or of another
                tokenizer or vocabulary; or a bad argument.
            OSError: the file cannot be read.
        """

    @staticmethod
    def describe(path: Path, /) -> Saved:
        """Check a saved file as `load` does and return its properties; ``bytes`` is the size of the file.

        Takes the time and the memory of `load`, and raises the same errors. ``vocab_size`` and ``tokenizer`` are None
        if they are unknown.
        """

    def stats(self) -> Stats:
        """Return a new dict.

        Current values: ``slots_open``, ``groups`` (open and closed), ``tokens`` in texts, ``history_texts`` and
        ``history_tokens``, those of earlier lives (0 if history is no source), ``bytes_used`` of ``memory_bytes``.

        Counted since the pool was made: ``appended`` tokens given to `step` and `append`; ``drafts`` (rows with a
        draft), ``drafted_tokens`` and ``accepted_tokens`` (confirmed by the tokens appended next), all three also
        ``by_source`` (a draft counts for the source of its first token); ``evicted_groups`` (closed groups, and indexes
        of open ones), ``evicted_history`` (times that a group lost its older closed texts), ``exhausted`` (requests
        that had no drafts for some time for lack of memory).
        """

    def _validate(self) -> str | None:
        """Check every invariant; return None, or a sentence about one that does not hold. For tests."""

    def _work(self) -> int:
        """Return the number of states visited so far. For tests."""

    def __reduce__(self) -> Any: ...

# What the drafter does for each request of a step, in less time than NumPy takes. All raise ValueError for a wrong
# value or shape, TypeError for an argument of another type, BufferError for a buffer that is not contiguous, aligned
# or, where it is written, writable. Nothing has changed then.

@final
class NgramTable:
    """The state of a `device_drafts.NgramTable`. Its buffer is that table's `memory`, int32 [M].

    Args:
        num_pages: at least 1.
        num_slots: a power of two.
        vocab_size: tokens of the vocabulary, at least 1.
        factors: int64 [9, 10], those of `device_drafts.factors`.
        of_groups, of_all: as for `device_drafts.NgramTable`.
    """

    num_changed: int
    """Number of entries of the memory that changed."""

    def __new__(
        cls, num_pages: int, num_slots: int, vocab_size: int, factors: Int64, of_groups: bool, of_all: bool
    ) -> NgramTable: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def append(self, pages: Int64, groups: Int32, token_rows: Int32, starts: Int32, ends: Int32, /) -> None:
        """See `device_drafts.NgramTable.append`."""

    def take_changes(self, indices: Int64, values: Int32, /) -> None:
        """Write the entries of the memory that changed, and forget that they did.

        Args:
            indices: writable int64 [num_changed], receives where they are, each once.
            values: writable int32 [num_changed].
        """

def correct_scores(scores: Float32, factors: Float64, corrected: Float64, /) -> None:
    """Multiply each score by the factor of its bin.

    Args:
        scores: float32 [B, K], 0 .. 1.
        factors: float64 [24], of the bins 0 .. 1/24, 1/24 .. 2/24, ...
        corrected: writable float64 [B, K], receives the products, lowered to 1 and to those before them in the row.
    """

def choose_drafts(
    scores: Float64,
    lengths: Int32,
    contexts: Float64,
    seconds: Float64,
    chosen: Int32,
    of_context: float,
    rate: float,
    fixed: bool,
    turn: int,
    /,
) -> tuple[float, float, float]:
    """Choose the drafts that give the most tokens per second, or those that are worth most at a given rate.

    A step of n draft tokens takes seconds[n] and `of_context` times the sum of contexts[i] over these tokens, each of a
    request i. It yields B tokens and those of the drafts that are accepted.

    Args:
        scores: float64 [B, K], probability that a draft is accepted up to each token; nonincreasing along a row.
        lengths: int32 [B], tokens of each draft, 0 .. K.
        contexts: float64 [B], tokens that each request holds, in thousands.
        seconds: float64 [sum(lengths) + 1].
        chosen: writable int32 [B], receives the tokens of each draft to verify, 0 .. lengths.
        of_context: seconds that a draft token costs for each thousand tokens that its request holds.
        rate: tokens per second, the price of a second. Unless `fixed` it is a guess, which only affects how long the
            choice takes; 0: no guess.
        fixed: whether the drafts are those that are worth most at this rate.
        turn: 0 or more; among tokens of equal value, those of request turn % B and of the following ones come first.

    Returns:
        The rate in tokens per second; the expected number of accepted tokens of the chosen drafts; and this number
        minus the cost of the drafts at this rate, in tokens.
    """

def observe_drafts(
    slots: Int32,
    gained: Int32,
    last_slots: Int32,
    drafted: Int32,
    contexts: Float64,
    counts: Float64,
    scores: Float32 | None,
    /,
) -> tuple[int, int, float, float]:
    """Add up what the B requests of a step had in the previous step, which had L requests, and count how many of their
    draft tokens were accepted.

    Args:
        slots: int32 [B], those of the requests.
        gained: int32 [B], tokens that each request got; 0 while its prompt is being read.
        last_slots: int32 [L], slots in the previous step, each once; less than 0: closed since.
        drafted: int32 [L], draft tokens of those requests, 0 .. K.
        contexts: float64 [L], tokens that those requests held, in thousands.
        counts: writable float64 [2, 24], to which the refused and the accepted draft tokens are added, by the bins of
            `correct_scores`. Requests that got no token do not count.
        scores: float32 [L, K], 0 .. 1, of the draft tokens; None: there was none.

    Returns:
        How many of the B requests were in the previous step; the sums of their draft tokens and of their contexts; and
        the sum, over the draft tokens, of the context of each token's request.

    Raises:
        MemoryError: no memory for a table of 4 bytes for each slot up to the largest of `last_slots`.
    """

def step_seconds(
    model: Float64, rows: int, drafts: bool, prompts: bool, context: float, draft_context: float, /
) -> float:
    """Expected seconds of a step.

    Args:
        model: float64 [22, 19]: the normal equations of the regression (products of features, then of seconds), how
            many steps had each feature, and the weights. The features are 1; whether there are drafts; whether prompts
            are read; context; draft_context; the rows 2, 3-4, 5-8, ..., 8193 and more.
        rows: tokens that the step computes, at least 1.
        context, draft_context: thousands of tokens.
    """

def learn_step(
    model: Float64,
    rows: int,
    drafts: bool,
    prompts: bool,
    context: float,
    draft_context: float,
    seconds: float,
    factor: float,
    keep: float,
    leave_out: bool,
    /,
) -> None:
    """Scale and fade what was learned, add a step, and fit the costs; the first arguments are those of `step_seconds`.

    Args:
        model: writable.
        seconds: the seconds that the step took.
        factor: by which all costs learned so far are multiplied.
        keep: factor by which earlier steps fade.
        leave_out: the step is not added.
    """

def rows_seconds(weights: Float64, rows: Int64, more: Int32, padded: Int32, seconds: Float64, /) -> None:
    """Write the expected seconds of N steps by their rows, without contexts and drafts.

    Args:
        weights: float64 [19], the last row of a model.
        rows: int64 [N], at least 1.
        more: int32, numbers of further rows, 0 or more, each with the same probability.
        padded: int32, computed rows of a step with 0, 1, 2, ... rows, at least 1; a larger step is not padded.
        seconds: writable float64 [N].
    """

def lowest_score(scores: Float32, lengths: Int32, /) -> float:
    """The lowest score of the last token of a draft; 1 if there is none.

    Args:
        scores: float32 [B, K].
        lengths: int32 [B], tokens of each draft, 0 .. K.
    """

def to_lists(table: Int32, lengths: Int32, /) -> list[list[int]]:
    """The first items of each row of a table.

    Args:
        table: int32 [B, K].
        lengths: int32 [B], number of items of each row, 0 .. K.
    """
