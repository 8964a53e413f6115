# SPDX-License-Identifier: Apache-2.0
"""`python -m research papers`: the experiments of SuffixDecoding, REST and GSD, as tables.

Recordings are decoded greedily by exact match, without a model. SD-T and SD-L are SuffixDecoding's trees and chains as
its paper has them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress
from sam_core.files import write_json

import sam_core
from research import models
from research.compare import shuffled_outputs
from research.exact import Exact
from research.pool import Frozen
from research.settings import Settings
from research.tree import GRAFTED, NODES_A_DRAFT, compare
from sam_core import corpus as corpora
from sam_lab.cli import LabError, check_outputs, non_negative, positive
from sam_lab.recordings import (
    DATA,
    MAX_RESPONSES,
    SEED,
    Answer,
    make_scopes,
    read_answers,
    split_fold,
    temporary_corpus,
)
from sam_lab.replay import DRAFTED, PRECISION, Counts, interval, quotient, replay

Row = dict[str, Any]
"""A row of a table by the names of its columns."""
NODES = 64
EXAMPLES = 256
SIZES = (16, 64, 256, 1000)
LIMITS = (2, 4, 6, 8, 12, 16)
ALPHAS = (1, 2, 3, 4)
MAX_KNOWN = 20_000
"""Tokens of earlier outputs, and a quarter of the tokens replayed, where SuffixDecoding learns in plain Python."""
RANDOM_SEQUENCES = RANDOM_TOKENS = 8
STORED, QUERIES = 10_000_000, 2000
SAMPLING = {"greedy": None, "T 0.8, top-p 0.95": (0.8, 0.95), "T 0.7, top-p 0.7": (0.7, 0.7)}
PRUNING = {"0.2, 0.3": (0.2, 0.3, 2), "0.4, 0.1": (0.4, 0.1, 1), "0.05, 0.05": (0.05, 0.05, 2)}
"""theta_prob and theta_sib, and tau: the paper's for 70B, for 7B and 13B, and one that leaves large trees."""
PROMPTS, TOKENS, GRAPH_NODES = 24, 128, 256


@dataclass(frozen=True)
class Recording:
    """Answers that are scored, and outputs for other prompts, in random order, which methods may know.

    others: outputs of the other recordings.
    """

    name: str
    scored: Sequence[Answer]
    outputs: Sequence[Sequence[int]]
    others: Sequence[Sequence[int]]
    max_tokens: int
    seed: int


def read_recordings(paths: Sequence[Path], max_tokens: int, seed: int) -> list[Recording]:
    """Of each the prompts of one of two folds are scored; raises LabError where one is empty, ValueError or OSError."""
    answers = {path: read_answers(path) for path in paths}
    found = []
    for path, of_path in answers.items():
        scored, known = split_fold(of_path, (0, 2))
        if not scored or not known:
            raise LabError(f"{path} has too few prompts: some are scored and others are the earlier ones")
        others = shuffled_outputs([a for other in paths if other != path for a in answers[other]], seed)
        outputs = shuffled_outputs(known, seed)
        found.append(Recording(path.name.partition(".")[0], scored, outputs, others, max_tokens, seed))
    return found


def replayed(recording: Recording, drafter: Any, tree: bool = True, nodes: int = NODES) -> Counts:
    """Counts by prompt of the scored answers."""
    scopes = make_scopes(recording.scored, "request", MAX_RESPONSES, recording.max_tokens, recording.seed)
    counts: Counts = {}
    replay(drafter, scopes, "request", nodes, tree, by_prompt=counts)
    return counts


def retrieved(recording: Recording, texts: Sequence[Sequence[int]], **options: Any) -> Counts:
    """`replayed` by REST with a datastore of these texts."""
    from research.rest import Rest

    with temporary_corpus(texts) as corpus:
        return replayed(recording, Rest(corpus, **options))


def measured(name: str, counts: Counts, others: Counts | None = None, parts: tuple[int, int] | None = None) -> Row:
    """A column with a `quotient`, tokens a step by default, and one with its interval by bootstrap over prompts."""
    of = (counts, others, parts) if parts else (counts, others)
    return {name: quotient(*of), f"{name}: 95 %": interval(*of)}


def columns(name: str, counts: Counts) -> Row:
    drafted = {f"{name}: drafted": quotient(counts, parts=DRAFTED)}
    return (
        measured(f"{name}: tokens a step", counts)
        | drafted
        | measured(f"{name}: accepted share", counts, parts=PRECISION)
    )


def sd_forms(recording: Recording) -> list[Row]:
    """SuffixDecoding: trees (SD-T), chains (SD-L) and the engine's approximation of SD-T, after all earlier outputs."""
    counts = {
        "SD-T": replayed(recording, Exact(recording.outputs)),
        "SD-L": replayed(recording, Exact(recording.outputs), tree=False),
        "rule suffix": replayed(recording, Frozen(recording.outputs)),
    }
    row: Row = {"earlier outputs": len(recording.outputs)}
    for name, of in counts.items():
        row |= columns(name, of)
    return [row | measured("SD-T / SD-L", counts["SD-T"], counts["SD-L"])]


def sd_trees(recording: Recording) -> list[Row]:
    """SuffixDecoding: both trees and each alone, after at most 256 earlier outputs."""
    known = recording.outputs[:EXAMPLES]
    counts = {trees: replayed(recording, Exact(known, trees)) for trees in ("both", "global", "request")}
    row: Row = {"earlier outputs": len(known)}
    for name, of in counts.items():
        row |= columns(name, of)
    return [row | measured("global / request", counts["global"], counts["request"])]


def sizes(recording: Recording) -> list[Row]:
    """SD-T and REST after so many earlier outputs to other prompts."""
    rows = []
    for size in sorted({min(size, len(recording.outputs)) for size in SIZES}):
        known = recording.outputs[:size]
        row: Row = {"earlier outputs": size} | columns("SD-T", replayed(recording, Exact(known)))
        rows.append(row | columns("REST", retrieved(recording, known)))
    return rows


def sd_limit(recording: Recording) -> list[Row]:
    """SuffixDecoding: MAX_SPEC = alpha p and constant limits; answers come one after another and are kept."""
    return [
        {"MAX_SPEC": name} | columns("SD-T", _online(recording, alpha, nodes))
        for name, alpha, nodes in [(f"{alpha} p", alpha, NODES) for alpha in ALPHAS]
        + [(f"constant {nodes}", None, nodes) for nodes in LIMITS]
    ]


def _online(recording: Recording, alpha: int | None, nodes: int) -> Counts:
    """SD-T after at most EXAMPLES outputs and MAX_KNOWN tokens; it keeps what it replays, an answer a prompt."""
    known, left = [], MAX_KNOWN
    for output in recording.outputs[:EXAMPLES]:
        known.append(output[:left])
        left -= len(known[-1])
        if not left:
            break
    counts: Counts = {}
    new = one_a_prompt(recording.scored, recording.seed, recording.max_tokens // 4)
    scopes = [[(answer, True)] for answer in new]
    replay(Exact(known, alpha=alpha, keep=True), scopes, "request", nodes, True, by_prompt=counts)
    return counts


def one_a_prompt(answers: Sequence[Answer], seed: int, max_tokens: int) -> list[Answer]:
    """One answer of each prompt, in random order, up to so many tokens: no new answer is a sibling of a known one."""
    chosen: dict[str, Answer] = {}
    for answer in random.Random(seed).sample(answers, len(answers)):
        chosen.setdefault(answer.prompt_id, answer)
    sums = itertools.accumulate(len(answer.response_ids) for answer in chosen.values())
    return [
        answer for answer, end in zip(chosen.values(), sums, strict=True) if end - len(answer.response_ids) < max_tokens
    ]


def sd_shift(recording: Recording) -> list[Row]:
    """SuffixDecoding on answers of another kind: the tree knows answers of the other recordings (frozen; online adds
    each answer as it ends), none (from nothing), or as many of the new kind (trained). By quarter of the answers."""
    known = recording.others[:EXAMPLES]
    new = one_a_prompt(recording.scored, recording.seed, 2 * recording.max_tokens)
    trained, new = [answer.response_ids for answer in new[::2]], new[1::2]
    arms = {
        "frozen": Exact(known),
        "online": Exact(known, keep=True),
        "from nothing": Exact(keep=True),
        "trained": Exact(trained),
    }
    rows = []
    quarter = max(1, -(-len(new) // 4))
    for name, drafter in arms.items():
        row: Row = {"the tree": name, "answers": len(new)}
        for place, at in enumerate(range(0, len(new), quarter), 1):
            counts: Counts = {}
            scopes = [[(answer, True)] for answer in new[at : at + quarter]]
            replay(drafter, scopes, "request", NODES, True, by_prompt=counts)
            row |= measured(f"quarter {place}", counts)
        rows.append(row)
    return rows


def rest_settings(recording: Recording) -> list[Row]:
    """REST: one setting differs from n_max = 16, m = 10, c = 64.

    `at random`: 8 of the continuations, of 8 tokens each.
    """
    varied: list[dict[str, Any]] = [{}, *({"n_max": n} for n in (2, 4, 6, 8)), *({"m": m} for m in (2, 5, 20))]
    varied += [{"c": c} for c in (8, 16, 32)]
    varied += [{"m": RANDOM_TOKENS, "max_looked_at": RANDOM_SEQUENCES, "seed": recording.seed}]
    rows = []
    for options in varied:
        name = "at random" if "seed" in options else ", ".join(f"{n} = {v}" for n, v in options.items()) or "default"
        rows.append({"setting": name} | columns("REST", retrieved(recording, recording.outputs, **options)))
    return rows


def rest_datastore(recording: Recording) -> list[Row]:
    """REST: a datastore of outputs of the task (own), of other recordings' answers (generic), and of both."""
    stores = {"own": recording.outputs, "generic": recording.others, "both": [*recording.outputs, *recording.others]}
    row: Row = {}
    for name, texts in stores.items():
        row |= {f"{name}, tokens": sum(map(len, texts))} | columns(name, retrieved(recording, texts))
    return [row]


def rest_times(recording: Recording) -> list[Row]:
    """REST: time and size of a datastore of 10 million tokens: the answers again, a tenth of the tokens replaced."""
    from research.rest import Rest

    rng = np.random.default_rng(recording.seed)
    texts = [np.array(text, np.int32) for text in [*recording.outputs, *recording.others]]
    known, size, own = np.concatenate(texts), sum(map(len, texts)), len(texts)
    while size < STORED:
        text = texts[rng.integers(own)].copy()
        changed = rng.random(len(text)) < 0.1
        text[changed] = rng.choice(known, changed.sum())
        texts.append(text)
        size += len(text)
    begin = time.perf_counter()
    with temporary_corpus(texts) as path:
        seconds = time.perf_counter() - begin
        facts = corpora.describe(path)
        store, times = Rest(path), []
        for _ in range(QUERIES):
            answer = recording.scored[int(rng.integers(len(recording.scored)))].response_ids
            context = answer[: rng.integers(1, len(answer) + 1)]
            begin = time.perf_counter()
            store.retrieve(context, Settings.c)
            times.append(1e6 * (time.perf_counter() - begin))
    row: Row = {"tokens stored": facts["tokens"], "bytes a token": facts["bytes_per_token"]}
    row["built, million tokens a second"] = facts["tokens"] / seconds / 1e6
    return [row | dict(zip(("median, us", "90 %, us", "99 %, us"), np.percentile(times, [50, 90, 99]), strict=True))]


def gsd(pair: models.Pair, seed: int) -> list[Row]:
    """GSD: chains (ssd), trees (tsd) and graphs of a draft model. Nodes: drafted by the model, a draft. Graph success:
    drafts of which a token behind a merged node was accepted."""
    from research.draft_model import DraftModel

    rows = []
    for (sampling, options), (pruning, (prob, sib, tau)) in itertools.product(SAMPLING.items(), PRUNING.items()):
        makers = {
            name: functools.partial(DraftModel, pair.draft, width, theta_prob=prob, theta_sib=sib, tau=merged)
            for name, width, merged in (("ssd", 1, 0), ("tsd", Settings.width, 0), ("gsd", Settings.width, tau))
        }
        decoder = pair.decoder(options, seed, TOKENS, GRAPH_NODES)
        for row in compare(decoder, makers, pair.prompts[:PROMPTS], 0, 1, 1, Progress())[1:]:
            counts = row["by_prompt"]
            into: Row = {"sampling": sampling, "theta_prob, theta_sib": pruning, "tau": tau, "method": row["method"]}
            into |= measured("tokens a step", counts) | measured("nodes", counts, parts=NODES_A_DRAFT)
            into |= measured("graph success", counts, parts=GRAFTED)
            rows.append(into | {"equal texts": f"{row['equal']}/{row['of']}"})
    return rows


EXPERIMENTS: dict[str, Callable[[Recording], list[Row]]] = {
    function.__name__.replace("_", "-"): function
    for function in (sd_forms, sd_trees, sizes, sd_limit, sd_shift, rest_settings, rest_datastore, rest_times)
}
EPILOG = "experiments:\n" + "".join(f"  {name:15} {f.__doc__}\n" for name, f in (EXPERIMENTS | {"gsd": gsd}).items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Repeat the papers' experiments on recordings, and with --models on models."
    add = parser.add_argument
    add("--data", nargs="+", type=Path, metavar="FILE", help="two recordings or more; default: those of sam_lab/data")
    add("--models", type=Path, metavar="DIR", help="of `python -m research models`; gsd is left out without it")
    add("--only", nargs="+", choices=(*EXPERIMENTS, "gsd"), metavar="NAME", help="these experiments; default: all")
    add("--max-tokens", type=positive, default=20_000, metavar="N", help="of a recording (default 20000)")
    add("--seed", type=non_negative, default=SEED, metavar="N")
    add("--json", type=Path, metavar="OUT", help="write all tables here")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    chosen = args.only or [*EXPERIMENTS, *(["gsd"] if args.models else [])]
    if "gsd" in chosen and not args.models:
        raise LabError("gsd needs --models DIR, the folder of `python -m research models --out DIR`")
    paths = args.data or sorted(DATA.glob("*.jsonl.gz"))
    if len(paths) < 2:
        raise LabError("--data needs two recordings or more: the answers of one are known when those of another come")
    check_outputs(args, "json")
    recordings = read_recordings(paths, args.max_tokens, args.seed)
    progress = Progress()
    tables: dict[str, list[Row]] = {}
    for name in chosen:
        rows: list[Row] = []
        if name == "gsd":
            rows = gsd(models.Pair.load(args.models, PROMPTS, args.seed), args.seed)
        else:
            for recording in recordings:
                progress.show(f"{name}: {recording.name}")
                rows += [{"recording": recording.name} | row for row in EXPERIMENTS[name](recording)]
        progress.clear()
        tables[name] = rows
        print(f"## {name}\n\n{table(rows)}", flush=True)
        if args.json:
            settings = {"sam_core": sam_core.__version__, "max_tokens": args.max_tokens, "seed": args.seed}
            write_json(args.json, settings | {"tables": tables})
    return 0


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " - ".join(map(_cell, value))
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
