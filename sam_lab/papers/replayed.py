# SPDX-License-Identifier: Apache-2.0
"""Experiments of SuffixDecoding and REST on recordings, decoded greedily by exact match, without a model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.reference.rules import ALPHA

from sam_lab.cli import LabError, digest
from sam_lab.methods import retrieval
from sam_lab.methods.exact import TREES, Exact
from sam_lab.methods.rest import Rest
from sam_lab.papers import Limits, Row, experiment, measured
from sam_lab.recordings import MAX_RESPONSES, Answer, Scope, make_scopes, read_answers, split_fold, temporary_corpus
from sam_lab.replay import DRAFTED, PRECISION, Counts, interval, quotient, replay
from sam_lab.score import shift
from sam_lab.score.methods import measure

NODES = 64
EXAMPLES = 256
SIZES = (16, 64, 256, 1000)
LIMITS = (2, 4, 6, 8, 12, 16)
ALPHAS = (1, 2, 3, 4)
LENGTHS = {"none": (0, 0), "1": (1, 1), "2": (2, 2), "3": (3, 3), "4": (4, 4), "5-6": (5, 6), "7-9": (7, 9)}
LENGTHS |= {"10-15": (10, 15), "16 or more": (16, 1 << 30)}
"""Classes of match lengths: the first and the last of each."""
COMMON = {"2-9": (2, 9)}  # of figure 13 of REST's paper
ONLINE_SHARE = 4  # of the tokens, one in so many is replayed where outputs are kept
KNOWN = 20_000  # maximum tokens of earlier outputs that are known before
RANDOM_SEQUENCES, RANDOM_TOKENS, RANDOM_RUNS = 8, 8, 3
STORED = 10_000_000
REST_SETTINGS = {"n_max": 16, "m": 10, "k": NODES}  # k: the paper's c
GAIN = 2, 1  # accepted tokens a step


@dataclass(frozen=True)
class Recording:
    """Answers that are scored, and outputs for other prompts, in random order, which methods may know.

    data: digest of the file. known: outputs of another recording, one a prompt, and known_of: its data; without another
    there are none.
    """

    name: str
    answers: Sequence[Answer]
    scored: Sequence[Answer]
    outputs: Sequence[Sequence[int]]
    data: str
    known: Sequence[Sequence[int]] = ()
    known_of: str = ""

    def one_a_prompt(self, limits: Limits) -> list[Answer]:
        return shift.one_a_prompt(self.scored, random.Random(limits.seed))


def read_recordings(paths: Sequence[Path], seed: int) -> list[Recording]:
    """Recordings, each with the outputs of the next one before it as `known`, the last one being before the first, whose
    data are others.

    Of each the prompts of fold 0 of 2 are scored, of 3, 5 or 7 where these leave nothing on one side; raises LabError
    where all do, ValueError or OSError.
    """
    recordings = []
    for path in paths:
        answers = read_answers(path)
        for folds in (2, 3, 5, 7):
            scored, others = split_fold(answers, (0, folds))
            if scored and others:
                break
        else:
            raise LabError(f"{path} has too few prompts: some are scored and others are the earlier ones")
        order = np.random.default_rng(seed).permutation(len(others))
        outputs = [others[place].response_ids for place in order]
        recordings.append(Recording(path.name.partition(".")[0], answers, scored, outputs, digest(path)))
    linked = []
    for place, recording in enumerate(recordings):
        others = [other for other in recordings[place:] + recordings[:place] if other.data != recording.data]
        if others:
            known = [answer.response_ids for answer in shift.one_a_prompt(others[-1].answers, random.Random(seed))]
            recording = replace(recording, known=known[:EXAMPLES], known_of=others[-1].data)
        linked.append(recording)
    return linked


def _replayed(recording: Recording, limits: Limits, method: str, **options: Any) -> tuple[Row, Counts]:
    """Figures of a method with the papers' settings, where `options` name no others, and its counts by prompt.

    SuffixDecoding is the paper's; the methods "rule suffix" and "rest" are the engine's rule and REST.
    """
    counts: Counts = {}
    known = recording.outputs if options.get("earlier") is None else recording.outputs[: options["earlier"]]
    if method in ("SD-T", "SD-L"):
        scopes = make_scopes(recording.scored, "request", MAX_RESPONSES, limits.max_tokens, limits.seed)
        drafter = Exact(known, options.get("trees", "both"))
        figures = replay(drafter, scopes, "request", NODES, method == "SD-T", by_prompt=counts)
        return figures | {"largest": drafter.largest}, counts
    chosen = {"context": "request", "method": "rest" if method == "rest" else "sd-tree", "tree": True}
    chosen |= {"trees": "both", "alpha": ALPHA} | REST_SETTINGS | options
    size = MAX_RESPONSES, limits.max_tokens
    return measure(chosen, recording.scored, known, *size, seed=limits.seed, by_prompt=counts), counts


def _columns(name: str, counts: Counts) -> Row:
    first = f"{name}: " if name else ""
    row = {f"{first}tokens a step": quotient(counts), f"{first}95 %": interval(counts)}
    return (
        row
        | {f"{first}drafted": quotient(counts, parts=DRAFTED)}
        | measured(f"{first}accepted share", counts, parts=PRECISION)
    )


# ---- SuffixDecoding


@experiment(
    "sd-forms",
    "SuffixDecoding: trees (SD-T) and chains (SD-L)",
    "After all earlier outputs; drafts of at most 64 tokens, alpha = 4. Accepted share: of the drafted tokens. Rule suffix: "
    "the engine's approximation of SD-T. 95 %: bootstrap over prompts.",
)
def forms(recording: Recording, limits: Limits) -> list[Row]:
    row: Row = {"earlier outputs": len(recording.outputs)}
    counts = {}
    for name in ("SD-L", "SD-T", "rule suffix"):
        _, counts[name] = _replayed(recording, limits, name)
        row |= _columns(name, counts[name])
    for name in ("SD-L", "rule suffix"):
        row |= measured(f"SD-T / {name}", counts["SD-T"], counts[name])
    return [row]


@experiment(
    "sd-trees",
    "SuffixDecoding: both trees and each alone",
    "SD-T after at most 256 earlier outputs; its largest tree. Better: the one that gains more alone.",
)
def trees(recording: Recording, limits: Limits) -> list[Row]:
    row: Row = {"earlier outputs": min(EXAMPLES, len(recording.outputs))}
    counts: dict[str, Counts] = {}
    for name in TREES:
        figures, counts[name] = _replayed(recording, limits, "SD-T", trees=name, earlier=EXAMPLES)
        row |= _columns(name, counts[name])
        if name == "both":
            parents = figures["largest"][1]
            row["largest tree: nodes"], row["leaves"] = len(parents), len(parents) - len({*parents} - {-1})
            row["depth"] = max(_depths(parents), default=0)
    better = max(("global", "request"), key=lambda name: quotient(counts[name]))
    row |= measured("both / better", counts["both"], counts[better])
    return [row | measured("global / request", counts["global"], counts["request"])]


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return depths


@experiment(
    "sizes",
    "Size of the global tree and of the datastore",
    "SD-T and REST after so many earlier outputs to other prompts; ratios to those after the fewest.",
)
def sizes(recording: Recording, limits: Limits) -> list[Row]:
    rows = []
    fewest: dict[str, Counts] = {}
    for size in sorted({min(size, len(recording.outputs)) for size in SIZES}):
        row: Row = {"earlier outputs": size}
        for name, method in (("SD-T", "SD-T"), ("REST", "rest")):
            _, counts = _replayed(recording, limits, method, earlier=size)
            row |= _columns(name, counts)
            if name in fewest:
                row |= measured(f"{name}: ratio", counts, fewest[name])
                row |= measured(f"{name}: ratio of accepted shares", counts, fewest[name], PRECISION)
            fewest.setdefault(name, counts)
        rows.append(row)
    return rows


Matches = dict[str, np.ndarray]
"""By prompt accepted tokens and steps, [2, lengths], by the length of the match."""


def _online(recording: Recording, limits: Limits, alpha: int | None, nodes: int = NODES) -> tuple[Matches, Counts]:
    """Replay one answer a prompt, each kept, after at most EXAMPLES outputs and KNOWN tokens of them."""
    known: list[Sequence[int]] = []
    left = KNOWN
    for output in recording.outputs[:EXAMPLES]:
        known.append(output[:left])
        left -= len(known[-1])
        if not left:
            break
    scopes = [[(answer, True)] for answer in _up_to(recording.one_a_prompt(limits), limits.max_tokens // ONLINE_SHARE)]
    return _matched(Exact(known, alpha=alpha, keep=True), scopes, nodes)


def _matched(drafter: Exact | Rest, scopes: Sequence[Scope], nodes: int) -> tuple[Matches, Counts]:
    """Replay scopes of one answer each, one after another with one drafter."""
    matches: Matches = {}
    counts: Counts = {}
    for scope in scopes:
        before = np.array([drafter.accepted, drafter.matches])
        replay(drafter, [scope], "request", nodes, tree=True, by_prompt=counts)
        prompt = scope[0][0].prompt_id
        matches[prompt] = matches.get(prompt, 0) + np.array([drafter.accepted, drafter.matches]) - before
    return matches, counts


def _up_to(answers: Sequence[Answer], tokens: int) -> Iterator[Answer]:
    """The first answers with so many tokens together."""
    for answer in answers:
        if tokens <= 0:
            return
        yield answer
        tokens -= len(answer.response_ids)


@experiment(
    "sd-limit",
    "SuffixDecoding: MAX_SPEC = alpha p and constant limits",
    "SD-T after at most 256 earlier outputs and 20,000 tokens of them; then one answer a prompt comes, and is kept. Ratio: to "
    "the constant limit that drafts most nearly as many tokens.",
)
def spec_limit(recording: Recording, limits: Limits) -> list[Row]:
    constant = {most: _online(recording, limits, None, most)[1] for most in LIMITS}
    rows = []
    for alpha in ALPHAS:
        _, counts = _online(recording, limits, alpha)
        drafted = quotient(counts, parts=DRAFTED)
        nearest = min(LIMITS, key=lambda most: abs(quotient(constant[most], parts=DRAFTED) - drafted))
        row = {"MAX_SPEC": f"{alpha} p"} | _columns("", counts) | {"constant": nearest}
        rows.append(row | measured("ratio", counts, constant[nearest]))
    return [*rows, *({"MAX_SPEC": f"constant {most}"} | _columns("", counts) for most, counts in constant.items())]


@experiment(
    "matches",
    "Accepted tokens by the length of the match",
    "SD-T: of the tree that won, as in sd-limit with alpha = 4. REST: of the longest suffix found, at most 16. Ratio: to a "
    "match of one token.",
)
def matches(recording: Recording, limits: Limits) -> list[Row]:
    scopes = make_scopes(recording.scored, "request", MAX_RESPONSES, limits.max_tokens, limits.seed)
    alone = [[answer] for scope in scopes for answer in scope]
    with temporary_corpus(recording.outputs) as corpus:
        found = {"SD-T": _online(recording, limits, ALPHA)[0], "REST": _matched(Rest(corpus), alone, NODES)[0]}
    rows: list[Row] = [{"match": name} for name in LENGTHS | COMMON]
    for method, of in found.items():
        classes = by_length(of, LENGTHS | COMMON)
        for row in rows:
            counts = classes[row["match"]]
            row |= measured(f"{method}: share of the steps", counts, parts=(1, 2))
            row |= measured(f"{method}: accepted", counts) | measured(f"{method}: ratio", counts, classes["1"])
    return rows


def by_length(matches: Matches, lengths: dict[str, tuple[int, int]]) -> dict[str, Counts]:
    """Of each class of lengths by prompt the accepted tokens, the steps, and the steps of all lengths."""
    return {
        name: {
            prompt: [*sums[:, first : last + 1].sum(axis=1).tolist(), int(sums[1].sum())]
            for prompt, sums in matches.items()
        }
        for name, (first, last) in lengths.items()
    }


@experiment(
    "sd-shift",
    "SuffixDecoding: answers of another kind",
    "Tokens a step. The tree knows answers of the recording named before, none, or answers of the new kind. Ratios: of the "
    "last quarter.",
)
def adapts(recording: Recording, limits: Limits) -> list[Row]:
    new = recording.one_a_prompt(limits)
    trained, replayed = new[: len(new) // 2], [*_up_to(new[len(new) // 2 :], limits.max_tokens)]
    if len(replayed) < 2:
        return []
    quarter = -(-len(replayed) // 4)
    outputs = [answer.response_ids for answer in trained]
    arms = shift.measure(recording.known, outputs, replayed, quarter, NODES, trees="both")
    rows = []
    for name, chunks in arms.items():
        known = len(recording.known) if name in ("frozen", "online") else len(trained) * (name == "trained")
        row: Row = {"known before": known, "answers": len(replayed), "the tree": name}
        for place, chunk in enumerate(chunks, 1):
            row |= measured(f"quarter {place}", chunk["by_prompt"])
        for other in ("frozen", "trained"):
            row |= measured(f"/ {other}", chunks[-1]["by_prompt"], arms[other][-1]["by_prompt"])
        rows.append(row)
    return rows


# ---- REST


@experiment(
    "rest-settings",
    "REST: its settings",
    "One setting differs from n_max = 16, m = 10, c = 64. Ratio: to the row with these.",
)
def settings(recording: Recording, limits: Limits) -> list[Row]:
    varied = [("n_max", value) for value in (2, 4, 6, 8, 16)]
    varied += [("m", value) for value in (2, 5, 10, 20)] + [("c", value) for value in (8, 16, 32, 64)]
    _, default = _replayed(recording, limits, "rest")
    rows = []
    for name, value in varied:
        option = "k" if name == "c" else name
        counts = default
        if value != REST_SETTINGS[option]:
            _, counts = _replayed(recording, limits, "rest", **{option: value})
        rows.append({"setting": f"{name} = {value}"} | _columns("REST", counts) | measured("ratio", counts, default))
    return rows


@experiment(
    "rest-datastore",
    "REST: a datastore of the task, a generic one",
    "Own: all earlier outputs of the task. Generic: the answers of the other recordings, as many tokens as own has or all. "
    "Both together. Gain: accepted tokens a step. 95 %: bootstrap over prompts.",
    of="recordings",
)
def datastores(recordings: Sequence[Recording], limits: Limits) -> list[Row]:
    rows = []
    for recording in recordings:
        others = [
            answer.response_ids for other in recordings if other.data != recording.data for answer in other.answers
        ]
        order = np.random.default_rng(limits.seed).permutation(len(others))
        generic = [others[place] for place in order]
        own_tokens = sum(map(len, recording.outputs))
        ends = np.cumsum([len(text) for text in generic])
        same = generic[: int(np.searchsorted(ends, own_tokens)) + 1]
        row: Row = {"recording": recording.name, "own, tokens": own_tokens, "generic, tokens": int(ends[-1])}
        counts = {}
        stores = {"own": recording.outputs, "generic, same size": same, "generic, all": generic}
        for name, texts in (stores | {"both": [*recording.outputs, *generic]}).items():
            _, counts[name] = _replayed(replace(recording, outputs=texts), limits, "rest")
            row |= _columns(name, counts[name])
        for name in ("generic, same size", "generic, all", "both"):
            row |= measured(f"{name} / own", counts[name], counts["own"])
            row |= measured(f"{name} / own: gain", counts[name], counts["own"], GAIN)
        rows.append(row)
    return rows


@experiment(
    "rest-choice",
    "REST: the trie and a random choice",
    "Random: at most 8 of the continuations, of 8 tokens each, the mean of 3 runs.",
)
def choice(recording: Recording, limits: Limits) -> list[Row]:
    scopes = make_scopes(recording.scored, "request", MAX_RESPONSES, limits.max_tokens, limits.seed)
    trie: Counts = {}
    random_: Counts = {}
    with temporary_corpus(recording.outputs) as corpus:
        replay(Rest(corpus), scopes, "request", NODES, tree=True, by_prompt=trie)
        for run in range(RANDOM_RUNS):
            replay(at_random(corpus, limits.seed + run), scopes, "request", NODES, tree=True, by_prompt=random_)
    return [_columns("trie", trie) | _columns("random", random_) | measured("trie / random", trie, random_)]


def at_random(corpus: str | Path, seed: int) -> Rest:
    """REST that drafts continuations chosen at random, as its paper's table 3 does: at most 8 of 8 tokens."""
    return Rest(corpus, m=RANDOM_TOKENS, c=NODES, max_looked_at=RANDOM_SEQUENCES, seed=seed)


@experiment(
    "rest-times",
    "REST: time and size of the datastore",
    "A datastore of 10 million tokens: all recordings, and their answers again with a tenth of the tokens replaced.",
    of="recordings",
)
def times(recordings: Sequence[Recording], limits: Limits) -> list[Row]:
    answers = [answer.response_ids for recording in recordings for answer in recording.answers]
    figures = retrieval.measure(answers, STORED, 2000, seed=limits.seed)
    row: Row = {"tokens stored": figures["tokens"], "bytes a token": figures["bytes_per_token"]}
    row["built, million tokens a second"] = figures["tokens_per_s"] / 1e6
    return [row | {"median, us": figures["median_us"], "90 %, us": figures["p90_us"], "99 %, us": figures["p99_us"]}]


EXPERIMENTS = (forms, trees, sizes, spec_limit, matches, adapts, settings, datastores, choice, times)
