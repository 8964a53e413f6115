# SPDX-License-Identifier: Apache-2.0
"""Score drafters on recorded answers: how many tokens a step they would have gained.

Each step drafts, accepts the longest path that equals the recorded continuation, and emits it and one more token; the
first step drafts from the prompt alone. That is what greedy verification of exact matches gives. Tokens a step are the
answers' tokens by the steps they took. `python -m sam_core replay --help` describes the recordings.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

import sam_core
from sam_core.files import write_json

CONTEXTS = ("request", "group", "sequential", "history", "nohistory")
DEFAULT_K = (3, 4, 8, 16)
MAX_RESPONSES, MAX_TOKENS, SEED = 1200, 500_000, 20
MAX_TAIL_REP = 8
BINS = {"0-1k": 1024, "1-2k": 2048, "2-4k": 4096, "4-8k": 8192, "8-16k": 16384, "16k+": 1 << 60}
MIN_BIN_STEPS = 200
NEEDED = "every line needs prompt_ids, response_ids and prompt_id"

EPILOG = """\
recordings:
  JSON Lines, plain or compressed (.gz, .zst), one answer a line:
    prompt_ids     token ids of the prompt as the model saw it, integers from 0 to 2147483647
    response_ids   token ids of the answer; lines without any are left out
    prompt_id      name of the prompt: a string or a number
    group          optional: answers of one name were sampled together; default: the same prompt and epoch
    epoch          optional (or step): a number; for history, answers to the prompt with a smaller one come first
    tail_rep       optional: repetitions of the loop that an answer ends in; lines with more than 8 are left out
  Other keys are ignored.

contexts:
  request          the prompt and the own answer
  group            a group's answers advance in lock-step and see each other: all draft, then all append
  sequential       a group's answers one after another; earlier ones are seen in full
  history          answers to the same prompt of earlier epochs are seen in full, then lock-step as in group
  nohistory        the same answers as history without the earlier ones: its control

Groups are drawn in an order that --seed fixes until --max-responses or --max-tokens is reached. All figures but the
times are the same in every run.
"""


class ReplayError(ValueError):
    """What is wrong with the input: one sentence for the user."""


# ---- recordings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a recording; token ids as array('i')."""

    prompt_ids: array[int]
    response_ids: array[int]
    prompt_id: str
    group: str
    epoch: float | None


Scope = list[tuple[Answer, bool]]
"""Answers that may see each other, and whether each is scored; those that are not come first."""


def read_answers(path: str | Path) -> list[Answer]:
    """The answers of a recording, in its order, without empty ones and loops; raises ReplayError or OSError."""
    answers = []
    with _lines(Path(path)) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip() and (answer := _parse(line, f"{path}, line {number}")):
                answers.append(answer)
    if not answers:
        raise ReplayError(f"{path} has no answers: {NEEDED}")
    return answers


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[Iterable[bytes]]:
    with contextlib.ExitStack() as stack:
        raw: IO[bytes] = stack.enter_context(open(path, "rb"))
        if path.suffix == ".gz":
            try:
                yield stack.enter_context(gzip.open(raw))
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ReplayError(f"{path} is not a whole gzip file ({error}): copy it again") from None
        elif path.suffix == ".zst":
            yield stack.enter_context(_zstd_lines(path, raw))
        else:
            yield raw


@contextlib.contextmanager
def _zstd_lines(path: Path, raw: IO[bytes]) -> Iterator[Iterable[bytes]]:
    broken = f"{path} is not a whole zstd file: copy it again"
    if program := shutil.which("zstd"):
        with subprocess.Popen([program, "-dcq"], stdin=raw, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout
            yield child.stdout
            while child.stdout.read(1 << 20):
                pass
        if child.returncode:
            raise ReplayError(broken)
        return
    try:
        import zstandard
    except ImportError:
        raise ReplayError(
            f"{path} is compressed by zstd and neither the program zstd nor the Python package zstandard is there: "
            "install one of them"
        ) from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            yield itertools.chain.from_iterable(_split(iter(lambda: reader.read(1 << 20), b"")))
    except zstandard.ZstdError:
        raise ReplayError(broken) from None


def _split(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield lines
    yield [rest]


def _parse(line: bytes, where: str) -> Answer | None:
    """The answer of one line, or None where it is to be left out."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ReplayError(f"{where} is not JSON ({error}): a recording has one object a line") from None
    if not isinstance(record, dict):
        raise ReplayError(f"{where} is not a JSON object: {NEEDED}")
    prompt, response = _token_ids(record, "prompt_ids", where), _token_ids(record, "response_ids", where)
    if not isinstance(record.get("prompt_id"), str | int):
        raise ReplayError(f"{where}: prompt_id must be a string or a number: {NEEDED}")
    epoch = record.get("epoch", record.get("step"))
    for name, value in (("epoch", epoch), ("tail_rep", record.get("tail_rep"))):
        if not isinstance(value, int | float | None) or (isinstance(value, float) and math.isnan(value)):
            raise ReplayError(f"{where}: {name} is {value!r}, which is not a number")
    if not response or (record.get("tail_rep") or 0) > MAX_TAIL_REP:
        return None
    group = record.get("group")
    name = f"{record['prompt_id']}@{epoch}" if group is None else str(group)
    return Answer(prompt, response, str(record["prompt_id"]), name, epoch)


def _token_ids(record: dict[str, Any], name: str, where: str) -> array[int]:
    value = record.get(name)
    if not isinstance(value, list):
        raise ReplayError(f"{where}: {name} is {'missing' if value is None else 'not a list'}: {NEEDED}")
    try:
        ids = array("i", value)
    except (TypeError, OverflowError):
        ids = None
    if ids is None or (ids and min(ids) < 0):
        raise ReplayError(f"{where}: {name} must hold token ids, integers from 0 to 2147483647")
    return ids


def in_fold(answer: Answer, fold: tuple[int, int]) -> bool:
    """Whether an answer's prompt belongs to fold (i, n): its hash gives each prompt one of the folds 0 .. n-1."""
    number, folds = fold
    return int(hashlib.sha1(answer.prompt_id.encode()).hexdigest(), 16) % folds == number


def make_scopes(
    answers: Sequence[Answer],
    context: str,
    max_responses: int = MAX_RESPONSES,
    max_tokens: int = MAX_TOKENS,
    seed: int = SEED,
) -> list[Scope]:
    """Draw scopes for a context until one of the limits on scored answers is reached; the last scope is whole.

    Raises ReplayError where history is asked of a recording without earlier epochs.
    """
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.group].append(answer)
    candidates: list[Scope] = []
    if context in ("history", "nohistory"):
        by_prompt: dict[str, list[list[Answer]]] = defaultdict(list)
        for group in groups.values():
            by_prompt[group[0].prompt_id].append(group)
        for _, of_prompt in sorted(by_prompt.items()):
            for group in of_prompt:
                now = group[0].epoch
                every = (answer for other in of_prompt for answer in other)
                earlier = [a for a in every if now is not None and a.epoch is not None and a.epoch < now]
                if earlier:
                    earlier.sort(key=lambda answer: answer.epoch or 0)
                    seen = earlier if context == "history" else []
                    candidates.append([(a, False) for a in seen] + [(a, True) for a in group])
        if not candidates:
            raise ReplayError(f"context {context} needs answers to one prompt with different `epoch` (or `step`)")
    else:
        candidates = [[(answer, True) for answer in groups[name]] for name in sorted(groups)]
    random.Random(seed).shuffle(candidates)
    chosen: list[Scope] = []
    responses = tokens = 0
    for scope in candidates:
        if responses >= max_responses or tokens >= max_tokens:
            break
        chosen.append(scope)
        responses += sum(scored for _, scored in scope)
        tokens += sum(len(answer.response_ids) for answer, scored in scope if scored)
    return chosen


# ---- drafters -------------------------------------------------------------------------------------------------------


class Drafter(Protocol):
    """What `replay` asks of a drafter. Requests are numbered by the caller; drafts and trees are lists.

    It may also have `drop(group)`, called when a group's last request has ended; `propose_many`, `propose_tree_many` and
    `append_many`, which do the same for a list of requests; and `by_source()`, whose dict joins the figures.
    """

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        """A request begins. Requests of one group may see each other's texts; those of None share nothing."""

    def append(self, request: int, tokens: Sequence[int]) -> None:
        """Tokens that the request has emitted."""

    def propose(self, request: int, k: int) -> list[int]:
        """A chain of at most k tokens."""

    def propose_tree(self, request: int, n: int) -> tuple[list[int], list[int]]:
        """Tokens and parents of at most n nodes, parents first; parent -1 is the end of the text."""

    def finish(self, request: int) -> None:
        """The request has ended; its text stays visible to its group."""


class SamDrafter:
    """`sam_core.Pool` as a drafter; `options` are the pool's."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._pool = sam_core.Pool(**options)
        self._slots: dict[int, int] = {}
        self._buffers: dict[tuple[int, int], list[np.ndarray]] = {}
        self._nothing = np.empty(0, np.int32)

    def warm(self, responses: Sequence[Sequence[int]]) -> None:
        """Start anew with a corpus of these texts."""
        with tempfile.TemporaryDirectory(prefix="sam-core-replay-") as folder:
            self._pool = sam_core.Pool(**self._options | {"corpus": build_corpus(responses, folder)})

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self._slots[request] = self._pool.open(prompt_ids, None if group is None else group.encode())

    def append(self, request: int, tokens: Sequence[int]) -> None:
        self.append_many([request], [tokens])

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        slots, _, out, lengths, _, _ = self._arrays(requests, 0)
        tokens = np.array([token for row in rows for token in row], np.int32)
        self._pool.step(slots, tokens, np.array([len(row) for row in rows], np.int32), 0, out, lengths)

    def propose(self, request: int, k: int) -> list[int]:
        return self.propose_many([request], k)[0]

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        slots, zeros, out, lengths, _, _ = self._arrays(requests, k)
        self._pool.step(slots, self._nothing, zeros, k, out, lengths)
        return [row[:length] for row, length in zip(out.tolist(), lengths.tolist())]

    def propose_tree(self, request: int, n: int) -> tuple[list[int], list[int]]:
        return self.propose_tree_many([request], n)[0]

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[tuple[list[int], list[int]]]:
        slots, zeros, out, lengths, scores, parents = self._arrays(requests, n)
        self._pool.step(slots, self._nothing, zeros, n, out, lengths, scores, parents)
        rows = zip(out.tolist(), parents.tolist(), lengths.tolist())
        return [(tokens[:length], above[:length]) for tokens, above, length in rows]

    def finish(self, request: int) -> None:
        self._pool.close(self._slots.pop(request))

    def drop(self, group: str) -> None:
        self._pool.drop(group.encode())

    def by_source(self) -> dict[str, dict[str, int]]:
        """Drafts and drafted tokens of each source, as the pool counts them."""
        return dict(self._pool.stats()["by_source"])

    def _arrays(self, requests: Sequence[int], k: int) -> list[np.ndarray]:
        """slots (filled in), zeros, out, lengths, scores, parents for these requests; made once for each size."""
        rows = len(requests)
        if (rows, k) not in self._buffers:
            self._buffers[rows, k] = [
                np.empty(rows, np.int32),
                np.zeros(rows, np.int32),
                np.empty((rows, k), np.int32),
                np.empty(rows, np.int32),
                np.empty((rows, k), np.float32),
                np.empty((rows, k), np.int32),
            ]
        arrays = self._buffers[rows, k]
        arrays[0][:] = [self._slots[request] for request in requests]
        return arrays


def build_corpus(texts: Iterable[Sequence[int]], folder: str | Path) -> str:
    """Build a corpus of texts in a folder and return its path."""
    from sam_core import corpus

    path = str(Path(folder) / "corpus")
    corpus.build_corpus(texts, path)
    return path


# ---- the replay -----------------------------------------------------------------------------------------------------


def accept_chain(draft: Sequence[int], target: Sequence[int], at: int) -> int:
    """How many tokens of a draft equal target[at:] from its beginning."""
    accepted = 0
    for token, right in zip(draft, itertools.islice(target, at, at + len(draft))):
        if token != right:
            break
        accepted += 1
    return accepted


def accept_tree(tokens: Sequence[int], parents: Sequence[int], target: Sequence[int], at: int) -> int:
    """The length of the longest path from the root of a tree that equals target[at:] from its beginning."""
    child = {(parent, token): node for node, (token, parent) in reversed([*enumerate(zip(tokens, parents))])}
    node, accepted = -1, 0
    while at + accepted < len(target) and (node, target[at + accepted]) in child:
        node, accepted = child[node, target[at + accepted]], accepted + 1
    return accepted


class _Request:
    __slots__ = ("at", "number", "response")

    def __init__(self, number: int, response: list[int]) -> None:
        self.number, self.response, self.at = number, response, 0


class _Tally:
    """Sums over the steps of one configuration."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.proposed = self.accepted = self.drafts = self.requests = 0
        self.draft_s = self.append_s = 0.0
        self.bins = {name: [0, 0] for name in BINS}

    def add(self, at: int, proposed: int, accepted: int, tokens: int) -> None:
        self.steps += 1
        self.tokens += tokens
        self.proposed += proposed
        self.accepted += accepted
        self.drafts += proposed > 0
        steps_tokens = self.bins[next(name for name, end in BINS.items() if at < end)]
        steps_tokens[0] += 1
        steps_tokens[1] += tokens

    def figures(self) -> dict[str, Any]:
        steps, tokens = max(self.steps, 1), max(self.tokens, 1)
        return {
            "tokens_per_step": round(self.tokens / steps, 4),
            "proposed_per_step": round(self.proposed / steps, 3),
            "precision": round(self.accepted / max(self.proposed, 1), 4),
            "accepted": self.accepted,
            "proposed": self.proposed,
            "steps": self.steps,
            "tokens": self.tokens,
            "requests": self.requests,
            "draft_rate": round(self.drafts / steps, 4),
            "us_propose": round(1e6 * self.draft_s / steps, 2),
            "us_append_per_token": round(1e6 * self.append_s / tokens, 3),
            "bins": {
                name: round(of_bin / count, 4) for name, (count, of_bin) in self.bins.items() if count >= MIN_BIN_STEPS
            },
        }


def replay(
    drafter: Any,
    scopes: Sequence[Scope],
    context: str,
    k: int,
    tree: bool = False,
    progress: Callable[[int], None] = lambda tokens: None,
) -> dict[str, Any]:
    """Run one configuration and return its figures.

    Args:
        drafter: a fresh Drafter.
        scopes: what `make_scopes` made for this context.
        context: one of CONTEXTS.
        k: the longest chain, or the most nodes of a tree.
        tree: draft trees.
        progress: called after each scope with the tokens replayed so far.

    Returns:
        tokens_per_step, proposed_per_step (drafted tokens a step), precision (accepted of the drafted tokens), accepted,
        proposed, steps, tokens, requests, draft_rate (steps with a draft), us_propose (microseconds a step),
        us_append_per_token (microseconds), bins (tokens a step by position in the answer, bins of 200 steps or more) and,
        where the drafter tells, by_source.
    """
    tally, clock = _Tally(), time.perf_counter
    has_many = hasattr(drafter, "propose_many")

    def draft(batch: list[_Request]) -> list[tuple[list[int], list[int]]]:
        numbers = [request.number for request in batch]
        start = clock()
        if tree and has_many:
            drafts = drafter.propose_tree_many(numbers, k)
        elif tree:
            drafts = [drafter.propose_tree(number, k) for number in numbers]
        elif has_many:
            drafts = drafter.propose_many(numbers, k)
        else:
            drafts = [drafter.propose(number, k) for number in numbers]
        tally.draft_s += clock() - start
        return drafts if tree else [(tokens, []) for tokens in drafts]

    def append(batch: list[_Request], rows: list[list[int]]) -> None:
        numbers = [request.number for request in batch]
        start = clock()
        if has_many:
            drafter.append_many(numbers, rows)
        else:
            for number, row in zip(numbers, rows):
                drafter.append(number, row)
        tally.append_s += clock() - start

    def step(batch: list[_Request]) -> list[_Request]:
        """Draft for all, then append to all; return those that go on."""
        rows = []
        for request, (tokens, parents) in zip(batch, draft(batch)):
            if len(tokens) > k:
                raise ValueError(f"the drafter returned {len(tokens)} tokens where at most {k} were asked for")
            target, at = request.response, request.at
            accepted = accept_tree(tokens, parents, target, at) if tree else accept_chain(tokens, target, at)
            row = target[at : at + accepted + 1]
            tally.add(at, len(tokens), accepted, len(row))
            request.at += len(row)
            rows.append(row)
        append(batch, rows)
        for request in batch:
            if request.at >= len(request.response):
                drafter.finish(request.number)
        return [request for request in batch if request.at < len(request.response)]

    numbers = itertools.count()
    for scope_number, scope in enumerate(scopes):
        group = None if context == "request" else f"g{scope_number}"
        scored = []
        for answer, is_scored in scope:
            request = _Request(next(numbers), answer.response_ids.tolist())
            if is_scored:
                scored.append((request, answer.prompt_ids))
                continue
            drafter.start(request.number, answer.prompt_ids, group)
            drafter.append(request.number, request.response)
            drafter.finish(request.number)
        together = [scored] if context not in ("request", "sequential") else [[one] for one in scored]
        for starting in together:
            for request, prompt in starting:
                drafter.start(request.number, prompt, group)
            batch = [request for request, _ in starting]
            tally.requests += len(batch)
            while batch:
                batch = step(batch)
        if group is not None and hasattr(drafter, "drop"):
            drafter.drop(group)
        progress(tally.tokens)
    figures = tally.figures()
    if hasattr(drafter, "by_source"):
        figures["by_source"] = drafter.by_source()
    return figures


# ---- the command ----------------------------------------------------------------------------------------------------


class Progress:
    """One line on stderr: rewritten on a terminal, elsewhere a new one every 30 s."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last = time.monotonic()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= (0.2 if self._tty else 30):
            self._last = now
            print(f"\r\033[K{text}" if self._tty else text, end="" if self._tty else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._tty:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _fold(text: str) -> tuple[int, int]:
    number, folds = map(int, text.split("/"))
    if not 0 <= number < folds or folds < 2:
        raise ValueError
    return number, folds


_positive.__name__, _probability.__name__, _fold.__name__ = "positive number", "probability", "fold"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to a parser."""
    parser.description = "Score drafting rules on recorded answers: tokens a step that they would have gained."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="a recording, see below")
    add("--context", nargs="+", choices=CONTEXTS, default=["request", "group"], help="default: request group")
    add("--k", nargs="+", type=_positive, metavar="K", help="longest chains; default 3 4 8 16, none beside --tree")
    add("--tree", nargs="+", type=_positive, metavar="N", help="most nodes of trees")
    add("--rule", nargs="+", metavar="RULE", help="drafting rules; default: the pool's")
    add("--sources", nargs="+", metavar="SOURCE", help="sources of drafts; default: the pool's")
    add("--min-prob", nargs="+", type=_probability, metavar="P", help="end drafts that are accepted with less than P")
    corpus = parser.add_mutually_exclusive_group()
    corpus.add_argument("--corpus", type=Path, metavar="PATH", help="draft from this corpus too")
    corpus.add_argument(
        "--corpus-from-others", action="store_true", help="draft from a corpus of the other folds' answers too"
    )
    add("--fold", type=_fold, metavar="I/N", help="score only the prompts of fold I of the folds 0 .. N-1")
    add("--max-responses", type=_positive, default=MAX_RESPONSES, metavar="N", help=f"default {MAX_RESPONSES}")
    add("--max-tokens", type=_positive, default=MAX_TOKENS, metavar="N", help=f"default {MAX_TOKENS}")
    add("--seed", type=int, default=SEED, metavar="N", help=f"default {SEED}")
    add("--json", type=Path, metavar="OUT", help="write all figures here after every configuration")
    add("--resume", action="store_true", help="keep the configurations that OUT already has")


def run(args: argparse.Namespace) -> int:
    """The command; raises ReplayError, or OSError for a file."""
    if args.corpus_from_others and not args.fold:
        raise ReplayError("--corpus-from-others needs --fold I/N, which says whose answers are scored")
    if args.resume and not args.json:
        raise ReplayError("--resume needs --json OUT, the file to continue")
    if args.json and not args.json.absolute().parent.is_dir():
        raise ReplayError(f"{args.json.parent} is not a folder: --json writes a file into it")
    sizes = [(k, False) for k in args.k or (() if args.tree else DEFAULT_K)] + [(n, True) for n in args.tree or ()]
    results = _read_results(args.json) if args.resume and args.json.exists() else []
    common: dict[str, Any] = {"sources": args.sources} if args.sources else {}
    if args.corpus:
        common["corpus"] = str(args.corpus)
    drafters = [
        common | ({} if rule is None else {"rule": rule}) | ({} if least is None else {"min_prob": least})
        for rule in args.rule or [None]
        for least in args.min_prob or [None]
    ]
    settings = {
        "sam_core": sam_core.__version__,
        "fold": "/".join(map(str, args.fold)) if args.fold else None,
        "corpus": "others" if args.corpus_from_others else _digest(args.corpus) if args.corpus else None,
        "max_responses": args.max_responses,
        "max_tokens": args.max_tokens,
        "seed": args.seed,
    }
    progress = Progress()
    asked = []
    print(TABLE.format("recording", "context", "draft", "tok/step", "drafted", "precision", "us/draft", "us/token", ""))
    for path in args.files:
        answers = read_answers(path)
        others = [answer for answer in answers if args.fold and not in_fold(answer, args.fold)]
        if args.fold:
            answers = [answer for answer in answers if in_fold(answer, args.fold)]
        if not answers or (args.corpus_from_others and not others):
            raise ReplayError(f"{path} has too few prompts for --fold {settings['fold']}: use fewer folds")
        identity = settings | {"file": str(path), "data": _digest(path)}
        with tempfile.TemporaryDirectory(prefix="sam-core-replay-") as folder:
            extra = {}
            if args.corpus_from_others:
                extra["corpus"] = build_corpus((answer.response_ids for answer in others), folder)
            for context in args.context:
                try:
                    scopes = make_scopes(answers, context, args.max_responses, args.max_tokens, args.seed)
                except ReplayError as error:
                    raise ReplayError(f"{path}: {error}") from None
                total = sum(len(answer.response_ids) for scope in scopes for answer, scored in scope if scored)
                for options, (k, tree) in itertools.product(drafters, sizes):
                    wanted = identity | {"context": context, "k": k, "tree": tree, "drafter": options}
                    found = next((result for result in results if wanted.items() <= result.items()), None)
                    if found is None:
                        name = f"{path.name} {context} {'n' if tree else 'k'}={k}"
                        try:
                            drafter = SamDrafter(**options | extra)
                        except ValueError as error:
                            raise ReplayError(str(error)) from None
                        figures = replay(
                            drafter,
                            scopes,
                            context,
                            k,
                            tree,
                            lambda done: progress.show(f"{name}: {done:,} of {total:,} tokens"),
                        )
                        found = wanted | figures
                        results.append(found)
                        if args.json:
                            write_json(args.json, results)
                    progress.clear()
                    asked.append(found)
                    print(_row(found), flush=True)
    if len(args.files) > 1:
        _print_means(asked)
    return 0


TABLE = "{:28} {:10} {:>7} {:>8} {:>8} {:>9} {:>8} {:>8}  {}"


def _row(result: dict[str, Any]) -> str:
    return TABLE.format(
        Path(result["file"]).name[:28],
        result["context"],
        f"{'n' if result['tree'] else 'k'}={result['k']}",
        f"{result['tokens_per_step']:.3f}",
        f"{result['proposed_per_step']:.2f}",
        f"{result['precision']:.3f}",
        f"{result['us_propose']:.2f}",
        f"{result['us_append_per_token']:.2f}",
        _options(result),
    ).rstrip()


def _options(result: dict[str, Any]) -> str:
    names = {name: value for name, value in result["drafter"].items() if name in ("rule", "min_prob")}
    return " ".join(f"{name}={value}" for name, value in names.items())


def _print_means(results: list[dict[str, Any]]) -> None:
    """Geometric means of tokens a step over the recordings."""
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        together[result["context"], result["tree"], result["k"], _options(result)].append(result)
    for (context, tree, k, options), rows in together.items():
        mean, drafted = (geometric_mean([row[key] for row in rows]) for key in ("tokens_per_step", "proposed_per_step"))
        draft = f"{'n' if tree else 'k'}={k}"
        print(
            TABLE.format(
                "geometric mean", context, draft, f"{mean:.3f}", f"{drafted:.2f}", "", "", "", options
            ).rstrip()
        )


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; 0 where one of them is 0."""
    return math.exp(sum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


def _read_results(path: Path) -> list[dict[str, Any]]:
    try:
        results = json.loads(path.read_text())
    except ValueError:
        results = None
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise ReplayError(f"{path} was not written by this command: name another file, or leave --resume out")
    return results


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        total = hashlib.blake2b(digest_size=8)
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()
