# SPDX-License-Identifier: Apache-2.0
"""Options of speculative method `sam`, under the names that engines, recipes and docs share."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from sam_core import __version__
from sam_core.corpus import describe

if TYPE_CHECKING:
    from sam_core._sam import Rule, Source

INTERFACE = __version__.rpartition(".")[0]
"""major.minor of this version. It changes whenever a function changes that the engine patches call."""

RULES: tuple[Rule, ...] = ("oldest", "newest", "suffix", "blend")
SOURCES: tuple[Source, ...] = ("request", "group", "history", "common")
SwitchName = Literal["batch", "auto"]
SWITCHES: tuple[str, ...] = get_args(SwitchName)
VERIFY = ("rejection", "seeded")
MAX_K = 15
"""Maximum tokens per draft: attention kernels accept 16 query tokens per request (vllm-ascend 0.23,
decode_threshold)."""
DEFAULT_K = MAX_K
"""Default tokens per draft; `auto` uses fewer where that pays (docs/results.md)."""

MAX_AUTO_MIN_PROB = 0.02
"""Largest min_prob that `auto` uses: it ends drafts itself where they are not worth their cost."""


@dataclass(frozen=True)
class Options:
    """Options in `speculative_config["sam"]`, with defaults.

    rule: how a draft is chosen from earlier continuations: `oldest`, `newest`, `suffix` or `blend`.
    sources: texts that are searched: `request` (its own prompt and answer), `group` (answers to the same prompt),
        `history` (earlier answers to the same prompt, which ended before the running ones began; needs `group`), and
        `common` (counts of what followed the last tokens in all requests of the engine, for rule `blend`).
    switch: `auto` chooses the draft tokens per request and step from the cost of steps and the value of drafts, both
        learned at run time; `batch` drafts while at most `threshold` requests run in a step.
    threshold: maximum running requests for `batch`, at least 1; `auto` ignores it. An engine for which `threshold` is
        given without `switch` uses `batch`.
    memory_bytes: limit for all indexes of one engine. The second runner's table on the device needs up to 1/16 more.
    verify: `rejection` (the engine's own method) or `seeded`: the noise of a token depends only on the request's seed
        and the token's position, so that the text is the same with and without drafts. Both sample the model's
        distribution.
    min_prob: a draft ends before the estimated probability that all of it is accepted falls below this, 0 <= x < 1;
        0 stands for 2**-30. `auto` uses at most MAX_AUTO_MIN_PROB.
    corpus: path of a file that `python -m sam_core build-corpus` wrote, a source for all requests; None: none.
    history: full path of a folder that outlives the engine, where its history and what switch `auto` learned are saved
        and restored; None: they are lost when the engine ends. Needs source `history`.
    """

    rule: Rule = "blend"
    sources: tuple[Source, ...] = SOURCES
    switch: str = "auto"
    threshold: int = 8
    memory_bytes: int = 1 << 30
    verify: str = "rejection"
    min_prob: float = 0.1
    corpus: str | None = None
    history: str | None = None

    @property
    def repeats_noise(self) -> bool:
        """Whether an engine may verify drafts with the same random numbers that sampled them.

        A restarted engine draws the same numbers again, and `history` or a corpus may hold its earlier answers.
        """
        return self.verify == "rejection" and bool(self.history or self.corpus)

    @property
    def pool_min_prob(self) -> float:
        """min_prob of the pool."""
        return min(self.min_prob, MAX_AUTO_MIN_PROB) if self.switch == "auto" else self.min_prob

    @classmethod
    def from_engine(
        cls,
        k: Any,
        sam: Mapping[str, Any] | None,
        interface: str = INTERFACE,
        verify: Sequence[str] = VERIFY[:1],
    ) -> Options:
        """Validate an engine's configuration; raise ValueError, one sentence, for a bad one.

        Args:
            k: `num_speculative_tokens`.
            sam: `speculative_config["sam"]`, or None.
            interface: major.minor of the sam_core that the engine's patches are written for.
            verify: verification modes that the patches have.
        """
        if interface != INTERFACE:
            raise ValueError(
                f"the engine's patches are written for sam_core {interface} but {INTERFACE} is installed: "
                "run ci/setup-env for the pin set, which builds and patches both"
            )
        if not _is_int(k) or not 1 <= k <= MAX_K:
            raise ValueError(f"num_speculative_tokens must be an integer from 1 to {MAX_K}, got {k!r}")
        if sam is None:
            return cls()
        if not isinstance(sam, Mapping):
            raise ValueError(f"speculative_config.sam must be a mapping of options, got {sam!r}")
        known = [f.name for f in fields(cls)]
        for name in sam:
            if name not in known:
                raise ValueError(f"unknown option {name!r} in speculative_config.sam; known: {', '.join(known)}")
        values = dict(sam)
        if isinstance(values.get("sources"), Sequence) and not isinstance(values["sources"], str):
            values["sources"] = tuple(values["sources"])
        if "threshold" in values:
            values.setdefault("switch", "batch")
        options = cls(**values)
        check_choice("verify", options.verify, tuple(verify))
        return options

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, RULES)
        check_choice("switch", self.switch, SWITCHES)
        check_choice("verify", self.verify, VERIFY)
        named = isinstance(self.sources, tuple) and all(isinstance(source, str) for source in self.sources)
        if not named or not self.sources or len(set(self.sources)) != len(self.sources):
            raise ValueError(
                f"sources must be a list of different names from {', '.join(SOURCES)}, got {self.sources!r}"
            )
        for source in self.sources:
            check_choice("sources", source, SOURCES)
        if "history" in self.sources and "group" not in self.sources:
            raise ValueError("sources has 'history' without 'group': add group, whose index holds the history")
        if not _is_int(self.threshold) or self.threshold < 1:
            raise ValueError(
                f"threshold must be an integer of at least 1, got {self.threshold!r}; "
                "to run without speculation leave speculative_config out"
            )
        if not _is_int(self.memory_bytes) or self.memory_bytes < 1 << 20:
            raise ValueError(
                f"memory_bytes must be an integer of at least {1 << 20} (1 MiB), got {self.memory_bytes!r}"
            )
        if self.memory_bytes >= 1 << 48:
            raise ValueError(f"memory_bytes must be below 2**48, got {self.memory_bytes}: give bytes of host memory")
        if not (isinstance(self.min_prob, float) or _is_int(self.min_prob)) or not 0 <= self.min_prob < 1:
            raise ValueError(f"min_prob must be a number of at least 0 and below 1, got {self.min_prob!r}")
        if self.corpus is not None:
            _check_corpus(self.corpus)
        if self.history is not None:
            if not isinstance(self.history, str) or not self.history.startswith("/"):
                raise ValueError(f"history must be the full path of a folder, got {self.history!r}")
            if "history" not in self.sources:
                raise ValueError("history names a folder, but sources lacks 'history': add it, or leave the folder out")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_corpus(path: Any) -> None:
    if not isinstance(path, str):
        raise ValueError(f"corpus must be the path of a file, got {path!r}")
    try:
        status = os.stat(path)
        _verify_corpus(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as e:
        raise ValueError(
            f"corpus {path!r} cannot be opened ({e.strerror}): "
            "name a file that `python -m sam_core build-corpus` wrote, by its full path"
        ) from None


@functools.lru_cache(maxsize=1)
def _verify_corpus(path: str, *identity: int) -> None:
    """Raise what `describe` raises; reads a file once, however often it is checked."""
    describe(path)


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, one sentence, unless the value of option `name` is allowed."""
    if value not in allowed:
        raise ValueError(f"{name} {value!r} is not available; this version has {', '.join(allowed)}")
