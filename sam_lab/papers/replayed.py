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
from sam_lab.papers import Limits, Row, experiment
from sam_lab.recordings import MAX_RESPONSES, Answer, make_scopes, read_answers, split_fold, temporary_corpus
from sam_lab.replay import Counts, interval, replay
from sam_lab.score import shift
from sam_lab.score.methods import measure

NODES = 64
EXAMPLES = 256
SIZES = (16, 64, 256, 1000)
LIMITS = (2, 4, 6, 8, 12, 16)
ALPHAS = (1, 2, 3, 4)
LENGTHS = {"none": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5-6": 6, "7-9": 9, "10-15": 15, "16 or more": 1 << 30}
"""Classes of match lengths: the longest of each."""
ONLINE_SHARE = 4  # of the tokens, one in so many is replayed where outputs are kept
KNOWN = 20_000  # maximum tokens of earlier outputs that are known before
RANDOM_SEQUENCES, RANDOM_TOKENS, RANDOM_RUNS = 8, 8, 3
STORED = 10_000_000


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
    chosen = {"context": "request", "method": "rest" if method == "rest" else "sd-tree", "tree": True, "k": NODES}
    chosen |= {"trees": "both", "alpha": ALPHA, "n_max": 16, "m": 10} | options
    size = MAX_RESPONSES, limits.max_tokens
    return measure(chosen, recording.scored, known, *size, seed=limits.seed, by_prompt=counts), counts


def _columns(name: str, figures: Row, counts: Counts | None = None) -> Row:
    names = {"tokens a step": "tokens_per_step", "drafted": "proposed_per_step", "accepted share": "precision"}
    row = {f"{name}: {column}" if name else column: figures[figure] for column, figure in names.items()}
    return row if counts is None else row | {f"{name}: 95 %": interval(counts)}


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
        figures, counts[name] = _replayed(recording, limits, name)
        row |= _columns(name, figures, counts[name])
    for name in ("SD-L", "rule suffix"):
        row[f"SD-T / {name}: 95 %"] = interval(counts["SD-T"], counts[name])
    return [row]


@experiment(
    "sd-trees", "SuffixDecoding: both trees and each alone", "SD-T after at most 256 earlier outputs; its largest tree."
)
def trees(recording: Recording, limits: Limits) -> list[Row]:
    row: Row = {"earlier outputs": min(EXAMPLES, len(recording.outputs))}
    for name in TREES:
        figures, counts = _replayed(recording, limits, "SD-T", trees=name, earlier=EXAMPLES)
        row |= _columns(name, figures, counts)
        if name == "both":
            parents = figures["largest"][1]
            row["largest tree: nodes"], row["leaves"] = len(parents), len(parents) - len({*parents} - {-1})
            row["depth"] = max(_depths(parents), default=0)
    return [row]


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return depths


@experiment(
    "sizes",
    "Size of the global tree and of the datastore",
    "SD-T and REST after so many earlier outputs to other prompts.",
)
def sizes(recording: Recording, limits: Limits) -> list[Row]:
    rows = []
    for size in sorted({min(size, len(recording.outputs)) for size in SIZES}):
        row: Row = {"earlier outputs": size}
        for name, method in (("SD-T", "SD-T"), ("REST", "rest")):
            row |= _columns(name, *_replayed(recording, limits, method, earlier=size))
        rows.append(row)
    return rows


def _online(recording: Recording, limits: Limits, alpha: int | None, nodes: int = NODES) -> tuple[Exact, Row]:
    """Replay one answer a prompt, each kept, after at most EXAMPLES outputs and KNOWN tokens of them."""
    known: list[Sequence[int]] = []
    left = KNOWN
    for output in recording.outputs[:EXAMPLES]:
        known.append(output[:left])
        left -= len(known[-1])
        if not left:
            break
    drafter = Exact(known, alpha=alpha, keep=True)
    scopes = [[(answer, True)] for answer in _up_to(recording.one_a_prompt(limits), limits.max_tokens // ONLINE_SHARE)]
    return drafter, replay(drafter, scopes, "request", nodes, tree=True)


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
    "SD-T after at most 256 earlier outputs and 20,000 tokens of them; then one answer a prompt comes, and is kept.",
)
def spec_limit(recording: Recording, limits: Limits) -> list[Row]:
    rows = []
    for name, alpha, nodes in [
        *((f"{alpha} p", alpha, NODES) for alpha in ALPHAS),
        *((f"constant {most}", None, most) for most in LIMITS),
    ]:
        _, figures = _online(recording, limits, alpha, nodes)
        rows.append({"MAX_SPEC": name} | _columns("", figures))
    return rows


@experiment(
    "matches",
    "Accepted tokens by the length of the match",
    "SD-T: of the tree that won, as in sd-limit with alpha = 4. REST: of the longest suffix found, at most 16.",
)
def matches(recording: Recording, limits: Limits) -> list[Row]:
    drafter, _ = _online(recording, limits, ALPHA)
    figures, _ = _replayed(recording, limits, "rest")
    counted = {
        "SD-T": by_length(drafter.matches, drafter.accepted),
        "REST": by_length(figures["matches"], figures["accepted_by_match"]),
    }
    rows: list[Row] = [{"match": name} for name in LENGTHS]
    for method, classes in counted.items():
        for row in rows:
            row[f"{method}: share of the steps"], row[f"{method}: accepted"] = classes[row["match"]]
    return rows


def by_length(counts: Sequence[int], accepted: Sequence[int]) -> dict[str, tuple[float, float | None]]:
    """Of each class of LENGTHS its share of the steps and the mean of the accepted tokens, None where it has no step.

    counts and accepted have steps and accepted tokens by match length, from 0.
    """
    classes, begin = {}, 0
    for name, longest in LENGTHS.items():
        steps, tokens = sum(counts[begin : longest + 1]), sum(accepted[begin : longest + 1])
        classes[name] = float(steps / sum(counts)), float(tokens / steps) if steps else None
        begin = longest + 1
    return classes


@experiment(
    "sd-shift",
    "SuffixDecoding: answers of another kind",
    "Tokens a step. The tree knows answers of the recording named before, none, or answers of the new kind.",
)
def adapts(recording: Recording, limits: Limits) -> list[Row]:
    new = recording.one_a_prompt(limits)
    trained, replayed = new[: len(new) // 2], [*_up_to(new[len(new) // 2 :], limits.max_tokens)]
    if len(replayed) < 2:
        return []
    quarter = -(-len(replayed) // 4)
    outputs = [answer.response_ids for answer in trained]
    arms = shift.measure(recording.known, outputs, replayed, quarter, NODES, trees="both")
    return [
        {"known before": len(recording.known) if name in ("frozen", "online") else len(trained) * (name == "trained")}
        | {"answers": len(replayed), "the tree": name}
        | {f"quarter {place}": chunk["tokens_per_step"] for place, chunk in enumerate(chunks, 1)}
        for name, chunks in arms.items()
    ]


# ---- REST


@experiment("rest-settings", "REST: its settings", "One setting differs from n_max = 16, m = 10, c = 64.")
def settings(recording: Recording, limits: Limits) -> list[Row]:
    varied = [("n_max", value) for value in (2, 4, 6, 8, 16)]
    varied += [("m", value) for value in (2, 5, 10, 20)] + [("c", value) for value in (8, 16, 32, 64)]
    rows = []
    for name, value in varied:
        figures, counts = _replayed(recording, limits, "rest", **{"k" if name == "c" else name: value})
        rows.append({"setting": f"{name} = {value}"} | _columns("REST", figures, counts))
    return rows


@experiment(
    "rest-datastore",
    "REST: a datastore of the task, a generic one",
    "Own: all earlier outputs of the task. Generic: the answers of the other recordings, as many tokens as own has or all. "
    "Both together. 95 %: bootstrap over prompts.",
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
            figures, counts[name] = _replayed(replace(recording, outputs=texts), limits, "rest")
            row |= _columns(name, figures, counts[name])
        row["generic, all / own: 95 %"] = interval(counts["generic, all"], counts["own"])
        rows.append(row)
    return rows


@experiment(
    "rest-choice",
    "REST: the trie and a random choice",
    "Random: at most 8 of the continuations, of 8 tokens each, the mean of 3 runs.",
)
def choice(recording: Recording, limits: Limits) -> list[Row]:
    scopes = make_scopes(recording.scored, "request", MAX_RESPONSES, limits.max_tokens, limits.seed)
    figures: dict[str, list[Row]] = {"trie": [], "random": []}
    trie: Counts = {}
    random_: Counts = {}
    with temporary_corpus(recording.outputs) as corpus:
        figures["trie"].append(replay(Rest(corpus), scopes, "request", NODES, tree=True, by_prompt=trie))
        for run in range(RANDOM_RUNS):
            drafter = at_random(corpus, limits.seed + run)
            figures["random"].append(replay(drafter, scopes, "request", NODES, tree=True, by_prompt=random_))
    row: Row = {}
    for name, runs in figures.items():
        row |= _columns(name, {key: sum(run[key] for run in runs) / len(runs) for key in AVERAGED})
    return [row | {"trie / random: 95 %": interval(trie, random_)}]


AVERAGED = ("tokens_per_step", "proposed_per_step", "precision")


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
