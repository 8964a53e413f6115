# SPDX-License-Identifier: Apache-2.0
"""Experiments on models: all methods, greedy and sampled; trees and graphs of a draft model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.console import Progress

from sam_lab import methods, models
from sam_lab.methods.draft_model import DraftModel
from sam_lab.methods.pool import Global
from sam_lab.papers import Limits, Row, experiment, measured
from sam_lab.papers.merges import Merges, divergence
from sam_lab.papers.replayed import at_random
from sam_lab.papers.shapes import GRAMS, Shapes
from sam_lab.recordings import temporary_corpus
from sam_lab.replay import PRECISION, Counts, interval
from sam_lab.tree.command import GRAFTED, NODES, compare, decode, pass_times

SAMPLING = {"greedy": None, "T 0.8, top-p 0.95": (0.8, 0.95), "T 0.7, top-p 0.8": (0.7, 0.8)}
"""REST's: HumanEval's and MT-Bench's."""
GSD_SAMPLING = {"greedy": None, "T 0.7, top-p 0.7": (0.7, 0.7)}
PRUNING = {"0.2, 0.3": (0.2, 0.3, 2), "0.4, 0.1": (0.4, 0.1, 1), "0.05, 0.05": (0.05, 0.05, 2)}
"""theta_prob and theta_sib, and tau: the paper's for 70B, for 7B and 13B, and one that leaves large trees."""
THRESHOLDS = {"tau": (1, 2, 3, 4), "theta_prob": (0.05, 0.1, 0.2, 0.4), "theta_sib": (0.05, 0.1, 0.3, 0.5, 0.7)}
EARLIER, PROMPTS, TOKENS = 32, 24, 160
GRAPH_TOKENS, GRAPH_NODES = 128, 256
WIDTH = methods.Settings.width
WIDTHS = (1, 2, 3, 4, 6)
SIBLINGS = (0.1, 0.3, 0.5, 0.7)
TAUS = (1, 2, 3, 4)
MERGES = 1000
REPEAT = 2


@dataclass
class Models:
    """A target, a smaller draft model of the same tokenizer, prompts of the target's task, earlier ones first."""

    target: Any
    draft: Any
    ends: Sequence[int]
    prompts: Sequence[Sequence[int]]

    def earlier(self, sampler: Any, limit: int) -> list[list[int]]:
        """The target's answers to the earlier prompts."""
        texts, _ = decode(self.decoder(sampler, limit), self.prompts[:EARLIER], None, 0, EARLIER, Progress(), "")
        return texts

    def compare(
        self,
        sampler: Any,
        makers: dict[str, Callable[[], Any]],
        limit: int,
        nodes: int = 64,
        repeat: int = REPEAT,
    ) -> list[Row]:
        """Rows of sam_lab.tree.command.compare, plain decoding's first."""
        decoder = self.decoder(sampler, limit, nodes)
        prompts = self.prompts[EARLIER : EARLIER + PROMPTS]
        return compare(decoder, makers, prompts, EARLIER, 1, repeat, Progress())[0]

    def compare_drafts(
        self, limits: Limits, makers: dict[str, Callable[[], Any]], options: tuple[float, float] | None = None
    ) -> list[Row]:
        """Rows of one run with large drafts of a draft model, without plain decoding's; options: see SAMPLING."""
        return self.compare(_sampler(options, limits.seed), makers, GRAPH_TOKENS, GRAPH_NODES, 1)[1:]

    def note(self, limits: Limits, drafter: Any, sums: Callable[[], Any]) -> list[Any]:
        """Decode the prompts greedily, one after another; what `sums` returns before each, and after the last."""
        decoder = self.decoder(_sampler(None, limits.seed), GRAPH_TOKENS, GRAPH_NODES)
        noted = [sums()]
        for place, prompt in enumerate(self.prompts[EARLIER : EARLIER + PROMPTS]):
            decode(decoder, [prompt], drafter, EARLIER + place, 1, Progress(), type(drafter).__name__)
            noted.append(sums())
        return noted

    def decoder(self, sampler: Any, limit: int, nodes: int = 64) -> Any:
        from sam_lab.tree.decoder import Decoder

        return Decoder(self.target, sampler, self.ends, limit, nodes)


def load(folder: Path, seed: int) -> Models:
    """Models of a folder that `python -m sam_lab models` wrote; raises LabError."""
    import torch

    torch.set_num_threads(1)
    target, tokenizer = models.load(folder / "target")
    draft, _ = models.load(folder / "draft")
    return Models(target, draft, [tokenizer.eos_token_id], models.prompts(tokenizer, EARLIER + PROMPTS, seed))


def _sampler(options: tuple[float, float] | None, seed: int) -> Any:
    from sam_lab.tree.verify import Greedy, Sampled

    return Greedy() if options is None else Sampled(*options, seed)


def _figures(row: Row) -> Row:
    """The columns that all tables here share; times in milliseconds a pass of the target."""
    return {
        "tokens a step": row["tokens_per_step"],
        "95 %": interval(row["by_prompt"]),
        "nodes a step": row["drafted_per_step"],
        **measured("accepted share", row["by_prompt"], parts=PRECISION),
        **{f"{name}, ms": time for name, time in pass_times(row).items()},
        "ms a token": 1e3 * row["decode_s"] / row["tokens"],
        "tokens a second": row["tokens"] / row["decode_s"],
        "speed-up": row["speedup"],
        "equal texts": f"{row['equal']}/{row['of']}",
    }


@experiment(
    "methods", "All methods on a model", "Greedy; times a pass of the target, the faster of two runs.", of="models"
)
def all_methods(pair: Models, limits: Limits) -> list[Row]:
    sampler = _sampler(None, limits.seed)
    earlier = pair.earlier(sampler, TOKENS)
    with temporary_corpus(earlier) as corpus:
        settings = methods.Settings()
        known = settings, earlier, corpus, pair.draft
        makers = {name: functools.partial(methods.make, name, *known) for name in methods.METHODS}
        rows = pair.compare(sampler, makers, TOKENS)
    return [{"method": row["method"]} | _figures(row) for row in rows]


@experiment("nucleus", "Greedy and nucleus sampling", "Earlier outputs are sampled in the same way.", of="models")
def nucleus(pair: Models, limits: Limits) -> list[Row]:
    rows: dict[str, Row] = {}
    greedy: dict[str, Counts] = {}
    for name, options in SAMPLING.items():
        sampler = _sampler(options, limits.seed)
        earlier = pair.earlier(sampler, TOKENS)
        with temporary_corpus(earlier) as corpus:
            makers = {
                "REST, trie": functools.partial(methods.make, "rest", methods.Settings(), earlier, corpus),
                "REST, random": functools.partial(at_random, corpus, limits.seed),
                "SD-T": functools.partial(Global, "both", earlier),
                "GSD": functools.partial(methods.make, "gsd", methods.Settings(), earlier, corpus, pair.draft),
            }
            for row in pair.compare(sampler, makers, TOKENS, repeat=1)[1:]:
                into = rows.setdefault(row["method"], {"method": row["method"]})
                into[f"{name}: tokens a step"] = row["tokens_per_step"]
                into[f"{name}: 95 %"] = interval(row["by_prompt"])
                if options is None:
                    greedy[row["method"]] = row["by_prompt"]
                else:
                    into |= measured(f"{name} / greedy", row["by_prompt"], greedy[row["method"]])
                into[f"{name}: equal texts"] = f"{row['equal']}/{row['of']}"
    return list(rows.values())


@experiment(
    "gsd",
    "GSD: chains, trees and graphs of a draft model",
    "Drafted by the model and expanded: nodes a draft. Graph success: drafts of which a token behind a merged node "
    "was accepted. Ratios of tokens a step, and of nodes.",
    of="models",
)
def graphs(pair: Models, limits: Limits) -> list[Row]:
    rows = []
    for (sampling, options), (pruning, (prob, sib, tau)) in itertools.product(GSD_SAMPLING.items(), PRUNING.items()):
        makers = {
            name: functools.partial(DraftModel, pair.draft, width, theta_prob=prob, theta_sib=sib, tau=merged)
            for name, width, merged in (("ssd", 1, 0), ("tsd", WIDTH, 0), ("gsd", WIDTH, tau))
        }
        compared = pair.compare_drafts(limits, makers, options)
        counts = {row["method"]: row["by_prompt"] for row in compared}
        for row in compared:
            name = row["method"]
            into = {"sampling": sampling, "theta_prob, theta_sib": pruning, "tau": tau, "method": name}
            into |= _drafted(row) | measured("graph success", counts[name], parts=GRAFTED) | _figures(row)
            if name != "ssd":
                into |= measured("/ ssd", counts[name], counts["ssd"])
            if name == "gsd":
                into |= measured("/ tsd", counts[name], counts["tsd"])
                into |= measured("nodes / tsd", counts[name], counts["tsd"], NODES)
            rows.append(into)
    return rows


def _drafted(row: Row) -> Row:
    expanded = row["counts"]["expanded"] / max(row["counts"]["drafts"], 1)
    return measured("drafted by the model", row["by_prompt"], parts=NODES) | {"expanded": expanded}


@experiment(
    "gsd-divergence",
    "GSD: KL divergence of merged nodes",
    "KL(own || shared), in nats: of the draft model's next token behind the node's own path and behind the path of "
    "the node it was merged with.",
    of="models",
)
def divergences(pair: Models, limits: Limits) -> list[Row]:
    """KL of merged nodes, of at most MERGES drawn at random from those of greedy decoding."""
    rows = []
    for (pruning, (prob, sib, _)), tau in itertools.product(PRUNING.items(), TAUS):
        drafter = Merges(pair.draft, theta_prob=prob, theta_sib=sib, tau=tau)
        ends = pair.note(limits, drafter, lambda drafter=drafter: len(drafter.merged))
        drawn = np.random.default_rng(limits.seed).permutation(len(drafter.merged))[:MERGES]
        values: list[float] = []
        counts: Counts = {}
        for prompt, (begin, end) in enumerate(itertools.pairwise(ends)):
            chosen = [drafter.merged[place] for place in sorted(drawn) if begin <= place < end]
            first = len(values)
            for text in dict.fromkeys(tuple(text) for text, _, _ in chosen):
                pairs = [(path, shared) for other, path, shared in chosen if tuple(other) == text]
                values += divergence(pair.draft, text, pairs)
            counts[str(prompt)] = [sum(values[first:]), len(values) - first]
        row: Row = {"theta_prob, theta_sib": pruning, "tau": tau, "merged nodes": len(drafter.merged)}
        row |= measured("KL, mean", counts)
        if tau == TAUS[0]:
            least = counts
        elif values:
            row |= measured("KL / tau = 1", counts, least)
        figures = (np.median(values), np.percentile(values, 95)) if values else (None, None)
        rows.append(row | dict(zip(("KL, median", "KL, 95th percentile"), figures, strict=True)))
    return rows


@experiment(
    "gsd-width",
    "GSD: maximum out-degree k",
    "Figure 5 (a): greedy. k = 1 is a chain. Ratios of tokens a step to k = 1, and of a graph's nodes to the tree's.",
    of="models",
)
def widths(pair: Models, limits: Limits) -> list[Row]:
    rows = []
    for pruning, (prob, sib, tau) in PRUNING.items():
        makers = {
            f"{name} {width}": functools.partial(
                DraftModel, pair.draft, width, theta_prob=prob, theta_sib=sib, tau=tau if name == "gsd" else 0
            )
            for name, width in itertools.product(("tsd", "gsd"), WIDTHS)
        }
        compared = pair.compare_drafts(limits, makers)
        counts = {row["method"]: row["by_prompt"] for row in compared}
        for row in compared:
            name, width = row["method"].split()
            into = {"theta_prob, theta_sib": pruning, "tau": tau, "method": name, "k": int(width)} | _drafted(row)
            into |= measured("tokens a step", counts[row["method"]])
            if width != "1":
                into |= measured("/ k = 1", counts[row["method"]], counts[f"{name} 1"])
            if name == "gsd":
                into |= measured("nodes / tsd", counts[row["method"]], counts[f"tsd {width}"], NODES)
            rows.append(into)
    return rows


@experiment(
    "gsd-thresholds",
    "GSD: thresholds",
    "Figure 5 (b) to (d): greedy graphs. One differs from tau = 1, theta_prob = 0.05, theta_sib = 0.05. Ratios of tokens a "
    "step and of nodes: to the smallest value.",
    of="models",
)
def thresholds(pair: Models, limits: Limits) -> list[Row]:
    default = {"tau": 1, "theta_prob": 0.05, "theta_sib": 0.05}
    rows = []
    for name, values in THRESHOLDS.items():
        makers = {
            str(value): functools.partial(DraftModel, pair.draft, **(default | {name: value})) for value in values
        }
        compared = pair.compare_drafts(limits, makers)
        least = compared[0]["by_prompt"]
        for row in compared:
            into: Row = {"threshold": name, "value": row["method"]} | _drafted(row)
            into |= measured("tokens a step", row["by_prompt"])
            if row is not compared[0]:
                into |= measured("ratio", row["by_prompt"], least) | measured("nodes", row["by_prompt"], least, NODES)
            rows.append(into)
    return rows


@experiment(
    "gsd-shapes",
    "GSD: tokens that occur again, and which child is accepted",
    "Figure 3: share of the nodes of a tree (k = 4) in an n-gram that stands on another branch too. Figures 7 and 8: accepted "
    "tokens by the rank of the child; ratio to theta_sib 0.1.",
    of="models",
)
def shapes(pair: Models, limits: Limits) -> list[Row]:
    rows = []
    settings = {(0.2, 0.3, 0), (0.2, 0.3, 2), (0.05, 0.05, 0)}
    settings |= {(prob, sib, 1) for prob, sib in itertools.product((0.05, 0.4), SIBLINGS)}
    least: Counts = {}
    for prob, sib, tau in sorted(settings):
        drafter = Shapes(pair.draft, theta_prob=prob, theta_sib=sib, tau=tau)
        noted = pair.note(limits, drafter, lambda drafter=drafter: (drafter.repeated.copy(), drafter.ranks.copy()))
        ranks: Counts = {}
        repeated: Counts = {}
        for prompt, (before, after) in enumerate(itertools.pairwise(noted)):
            of_nodes, of_ranks = (now - then for then, now in zip(before, after, strict=True))
            repeated[str(prompt)] = [of_nodes[n] for n in (0, *GRAMS)]
            ranks[str(prompt)] = [of_ranks.total(), of_ranks.total() - of_ranks[1]]
        row: Row = {"theta_prob": prob, "theta_sib": sib, "tau": tau, "nodes": drafter.repeated[0]}
        for n in GRAMS:
            row |= measured(f"{n}-grams again", repeated, parts=(n, 0))
        row |= measured("not child 1", ranks, parts=(1, 0))
        if (sib, tau) == (SIBLINGS[0], 1):
            least = ranks
        elif tau == 1:
            row |= measured("not child 1: ratio", ranks, least, (1, 0))
        rows.append(row | {f"child {rank}": drafter.ranks[rank] / drafter.ranks.total() for rank in (1, 2, 3, 4)})
    return rows


EXPERIMENTS = (all_methods, nucleus, graphs, widths, thresholds, shapes, divergences)
