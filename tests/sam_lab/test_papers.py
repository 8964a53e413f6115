# SPDX-License-Identifier: Apache-2.0
"""The experiments on the papers' claims: what they measure, and the command that runs them."""

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from sam_core.corpus import build_corpus

from sam_lab import __main__ as lab
from sam_lab.methods.draft_model import Node
from sam_lab.methods.exact import Exact
from sam_lab.methods.pool import SamDrafter
from sam_lab.papers import Limits, article, claims, decoded, merges, replayed, shapes
from sam_lab.recordings import read_answers
from sam_lab.replay import DRAFTED, PRECISION, interval, quotient, replay
from sam_lab.tree.decoder import Decoder
from sam_lab.tree.verify import Greedy


def recording(path, prompts=24, size=64, seed=0):
    """Answers of few phrases, two to each prompt, of different lengths."""
    rng = random.Random(seed)
    phrases = [[rng.randrange(50) for _ in range(8)] for _ in range(12)]
    with open(path, "w") as file:
        for prompt in range(prompts):
            for _ in range(2):
                answer = [token for _ in range(rng.randint(1, size // 8)) for token in rng.choice(phrases)]
                row = {"prompt_ids": [prompt], "response_ids": answer, "prompt_id": str(prompt), "epoch": 0}
                file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recording(tmp_path_factory.mktemp("data") / "phrases.jsonl")


@pytest.mark.parametrize("alpha", [1, 3, None])
def test_exact_knows_its_matches_and_keeps_alpha(path, alpha):
    answers = read_answers(path)
    drafter = Exact([answer.response_ids for answer in answers[:20]], alpha=alpha, keep=True)
    counts = {}
    scopes = [[(answer, True)] for answer in answers[20:]]
    figures = replay(drafter, scopes, "request", 24, tree=True, by_prompt=counts)
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    assert sums == [figures[name] for name in ("tokens", "steps", "accepted", "proposed")]
    assert sum(drafter.matches) == figures["steps"]
    assert sum(drafter.accepted) == figures["accepted"] > 0
    assert sum(drafter.drafted) == figures["proposed"]
    most = drafter.matches * [24 if alpha is None else min(24, alpha * length) for length in range(65)]
    assert drafter.matches[1] and (drafter.drafted[1:] <= most[1:]).all()
    assert alpha is not None or drafter.drafted[1] > 4 * drafter.matches[1]


def after(texts, pattern):
    """What follows a pattern in texts, with counts."""
    n = len(pattern)
    return Counter(text[i + n] for text in texts for i in range(len(text) - n) if text[i : i + n] == pattern)


def best_score(texts, text, p, most, tree):
    """Algorithm 1 of the paper from the last p tokens, by counting strings: the sum of the largest D."""
    score, added, offers = 0.0, 0, [(1.0, text[-p:])]
    leaves = []
    while added < most:
        if not tree:
            leaves = []
        for share, string in offers:
            counts = after(texts, string)
            leaves += [(share * n / counts.total(), [*string, token]) for token, n in counts.items()]
        if not leaves:
            break
        offers = [max(leaves, key=lambda leaf: leaf[0])]
        leaves.remove(offers[0])
        score += offers[0][0]
        added += 1
    return score


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("trees", ["both", "global", "request"])
def test_exact_is_the_paper_s_algorithm(trees, tree):
    rng = random.Random(3)
    outputs = [[rng.randrange(4) for _ in range(rng.randint(1, 30))] for _ in range(8)]
    text, drafted = [rng.randrange(4) for _ in range(5)], 0
    drafter = Exact(outputs, trees, alpha=2)
    drafter.start(0, text, None)
    for _ in range(15):
        found = {
            (source, p): best_score(texts, text, p, min(9, 2 * p), tree)
            for source, texts in (("request", [text]), ("global", outputs))
            if trees in ("both", source)
            for p in range(1, len(text))
        }
        tokens, parents = drafter._propose(0, 9, tree)
        chosen = 0.0
        for source in ("request", "global"):  # the draft's own score, by whichever tree and pattern gives the most
            texts = [text] if source == "request" else outputs
            for p in range(1, len(text)) if trees in ("both", source) else ():
                shares = []
                for token, parent in zip(tokens, parents, strict=True):
                    string = path_to(tokens, parents, parent)
                    counts = after(texts, [*text[-p:], *string])
                    above = 1.0 if parent < 0 else shares[parent]
                    shares.append(above * counts[token] / counts.total() if counts[token] else 0.0)
                if len(tokens) <= 2 * p and all(shares):
                    chosen = max(chosen, sum(shares))
        assert chosen == pytest.approx(max(found.values(), default=0.0))
        drafted += len(tokens)
        drafter.append(0, row := [rng.randrange(4)])
        text += row
    assert drafted > 30


def path_to(tokens, parents, node):
    return [] if node < 0 else [*path_to(tokens, parents, parents[node]), tokens[node]]


def test_an_interval_is_of_prompts():
    same = {str(i): [20, 10] for i in range(30)}
    half = {str(i): [10 if i % 2 else 30, 10] for i in range(30)}
    assert interval(same) == [2.0, 2.0] and interval({"0": [2, 1]}) is None
    low, high = interval(half)
    assert 1.5 < low < 1.9 < 2.1 < high < 2.5
    assert interval(half, half) == [1.0, 1.0] and quotient(half) == 2 and quotient(half, same) == 1
    drafts = {str(i): [30, 10, 4 * (i % 2), 8] for i in range(30)}
    assert quotient(drafts, parts=PRECISION) == 0.25 and quotient(drafts, parts=DRAFTED) == 0.8
    assert interval(drafts, parts=PRECISION)[0] < 0.25 < interval(drafts, parts=PRECISION)[1] < 0.4
    without = {"0": [1, 1, 0, 0], "1": [1, 1, 1, 2]}
    assert quotient(without, parts=PRECISION) == 0.5 and interval(without, parts=PRECISION) is None


def test_classes_of_match_lengths():
    counts, accepted = [2, 3, 0, 0, 0, 1, 1] + [0] * 9 + [3], [0, 6, 0, 0, 0, 4, 5] + [0] * 9 + [30]
    matches = {"a": np.array([accepted, counts]), "b": np.array([accepted, counts]) * 2}
    found = replayed.by_length(matches, replayed.LENGTHS | replayed.COMMON)
    assert found["none"] == {"a": [0, 2, 10], "b": [0, 4, 20]} and found["1"] == {"a": [6, 3, 10], "b": [12, 6, 20]}
    assert quotient(found["2"]) is None and quotient(found["5-6"]) == 4.5 and quotient(found["16 or more"]) == 10
    assert quotient(found["2-9"], parts=(1, 2)) == 0.2


def test_accepted_tokens_by_match_are_of_each_prompt(path):
    answers = read_answers(path)
    scopes = [[(answer, True)] for answer in answers[20:]]
    matches, counts = replayed._matched(Exact([answer.response_ids for answer in answers[:20]]), scopes, 24)
    assert len(counts) > 5 and matches.keys() == counts.keys()
    for prompt, (accepted, steps) in matches.items():
        assert [accepted.sum(), steps.sum()] == [counts[prompt][2], counts[prompt][1]]


def test_a_claim_is_judged_by_its_interval():
    claim = claims.Claim("a paper", "more", "a table", "ratio", 1, where={"k": 6})
    verdicts = {(1.1, 1.3): "agrees", (0.9, 1.1): "not shown", (0.8, 1.0): "does not", None: "not shown"}
    assert {bounds: claim.verdict(1.0, bounds) for bounds in verdicts} == verdicts
    about = claims.Claim("a paper", "about", "a table", "share", 0.9, 1.1)
    verdicts = {(0.95, 1.05): "agrees", (0.95, 1.2): "not shown", (1.2, 1.3): "does not", (0.5, 0.6): "does not"}
    assert {bounds: about.verdict(1.0, bounds) for bounds in verdicts} == verdicts


def test_a_generic_datastore_is_of_the_other_recordings(path, tmp_path):
    both = replayed.read_recordings([path, recording(tmp_path / "other.jsonl", seed=1)], 0)
    for row in replayed.datastores.run(both, Limits(600, 0)):
        (other,) = (each for each in both if each.name != row["recording"])
        assert row["generic, tokens"] == sum(len(answer.response_ids) for answer in other.answers)
        assert row["own: tokens a step"] > 1.2 * row["generic, all: tokens a step"]  # other phrases
        low, high = row["generic, all / own: 95 %"]
        assert low <= row["generic, all / own"] <= high < 1
        assert row["generic, all / own: gain"] < row["generic, all / own"]


def test_claims_on_models_have_values(target, draft_model, prompts, monkeypatch):
    small = {"EARLIER": 3, "PROMPTS": 2, "TOKENS": 32, "GRAPH_TOKENS": 16, "WIDTHS": (1, 2, 6), "SIBLINGS": (0.1, 0.7)}
    small |= {"TAUS": (1, 4), "THRESHOLDS": {"tau": (1, 4), "theta_prob": (0.05, 0.4), "theta_sib": (0.05, 0.7)}}
    for name, value in small.items():
        monkeypatch.setattr(decoded, name, value)
    pair = decoded.Models(target, draft_model, [], prompts[:6])
    chosen = (decoded.nucleus, decoded.graphs, decoded.widths, decoded.thresholds, decoded.shapes, decoded.divergences)
    tables = {each.name: each.run(pair, Limits(100, 0)) for each in chosen}
    found = {(row["paper"], row["claim"]) for row in claims.judge(tables)}
    assert found == {(claim.paper, claim.text) for claim in claims.CLAIMS if claim.table in tables}
    wide = {
        (row["method"], row["k"]): row for row in tables["gsd-width"] if row["theta_prob, theta_sib"] == "0.05, 0.05"
    }
    assert wide["tsd", 6]["drafted by the model"] > 4 * wide["tsd", 1]["drafted by the model"]
    assert wide["gsd", 2]["nodes / tsd"] < 1 < wide["gsd", 6]["/ k = 1"]  # wider trees end at MAX_EXPANDED


def test_a_random_choice_is_of_continuations(tmp_path):
    texts = [[1000, first, *range(first, first + 20)] for first in range(0, 600, 20)]
    build_corpus(texts, tmp_path / "corpus")
    drafts = []
    for seed in (1, 1, 2):
        tokens, parents = replayed.at_random(tmp_path / "corpus", seed).retrieve([1000], 64)
        firsts = [token for token, parent in zip(tokens, parents, strict=True) if parent == -1]
        assert len(firsts) == len({*firsts}) == 8 and {*firsts} <= {*range(0, 600, 20)}
        below = [(token, parent) for token, parent in zip(tokens, parents, strict=True) if parent >= 0]
        assert len(tokens) == 64 and all(token == tokens[up] + (parents[up] >= 0) for token, up in below)
        drafts.append(sorted(firsts))
    assert drafts[0] == drafts[1] != drafts[2]


def test_the_tail_drafts_below_the_threshold_alone(tmp_path):
    answers = read_answers(recording(tmp_path / "long.jsonl", prompts=3, size=400))
    drafter = article.Tail(SamDrafter(rule="oldest", sources=("request",)), 2)
    figures = replay(drafter, [[(answer, True) for answer in answers]], "group", 3)
    ends = sorted((len(answer.response_ids) for answer in answers), reverse=True)
    assert figures["accepted"] > 0
    assert drafter.steps - drafter.tail == ends[2] and drafter.tail < ends[0] - ends[2]


def test_merged_nodes_share_their_last_tokens(target, draft_model, prompts):
    drafter = merges.Merges(draft_model, theta_prob=0.05, theta_sib=0.1, tau=2)
    Decoder(target, Greedy(), [], 24, nodes=64).run(prompts[2:3], drafter)
    assert len(drafter.merged) == drafter.counts["merged"] > 0
    assert all(own != first and own[-2:] == first[-2:] for _, own, first in drafter.merged)
    assert any(own[:-2] != first[:-2] for _, own, first in drafter.merged)


def test_repeated_tokens_and_accepted_children(target, draft_model, prompts):
    root = Node(9, None, 1.0, 1.0, 0)
    first, second = Node(1, root, 0.5, 0.5, 1), Node(2, root, 0.5, 0.5, 1)
    nodes = [first, second, Node(3, first, 0.5, 0.2, 2), Node(3, second, 0.5, 0.2, 2)]
    nodes += [Node(4, nodes[2], 0.5, 0.1, 3), Node(4, nodes[3], 0.5, 0.1, 3)]
    assert shapes.repeats(nodes) == {0: 6, 1: 4, 2: 4, 3: 0, 4: 0}
    drafter = shapes.Shapes(draft_model, width=3, theta_prob=0.05, theta_sib=0.1)
    _, figures = Decoder(target, Greedy(), [], 24, nodes=1024).run(prompts[:3], drafter)
    assert 0 <= figures.accepted - drafter.ranks.total() <= 3  # the last token of an answer may be a drafted one
    assert drafter.ranks[1] > drafter.ranks[3] > 0
    assert 0 < drafter.repeated[2] < drafter.repeated[1] < drafter.repeated[0] <= drafter.counts["nodes"]


def test_divergence_is_that_of_the_model(draft_model):
    text, pairs = [3, 1, 4], [([1, 5], [9, 5]), ([2, 6, 5], [5]), ([7], [7])]
    wanted = []
    for own, shared in pairs:
        with torch.inference_mode():
            logits = (draft_model(torch.tensor([text + path])).logits[0, -1] for path in (own, shared))
            p, q = (of_path.double().softmax(-1) for of_path in logits)
        wanted.append((p * (p / q).log()).sum().item())
    found = merges.divergence(draft_model, text, pairs)
    assert found == pytest.approx(wanted, abs=1e-5) and wanted[0] > 1e-3 and found[2] == 0


def test_the_command_makes_tables_and_goes_on_where_it_ended(path, tmp_path, capsys):
    other, out = recording(tmp_path / "other.jsonl", seed=1), tmp_path / "out"
    call = ["papers", "--data", str(path), str(other), "--max-tokens", "200", "--out", str(out)]
    assert lab.main([*call, "--only", "matches"]) == 0
    first = json.loads((out / "papers.json").read_text())
    names = [each.name for each in (*replayed.EXPERIMENTS, *article.EXPERIMENTS)]
    wanted = [name for name in names if name != "rest-times"]  # 10 million tokens
    assert lab.main([*call, "--only", *wanted]) == 0
    results = json.loads((out / "papers.json").read_text())
    assert results[:2] == first
    done = {(result["experiment"], result["of"]) for result in results}
    alone = {name for name in wanted if name != "rest-datastore"}
    assert done == {(name, of) for name in alone for of in ("phrases", "other")} | {("rest-datastore", "all")}
    assert all(result["rows"] for result in results)
    measured = {
        name: [row for result in results if result["experiment"] == name for row in result["rows"]] for name in wanted
    }
    expected = {claim.text for claim in claims.CLAIMS if claim.table in wanted}
    assert {row["claim"] for row in claims.judge(measured)} == expected
    printed = capsys.readouterr().out
    assert printed.count("SuffixDecoding: trees accept more than chains") == 2 and ", 95 %: " in printed
    rows = {result["experiment"]: result["rows"] for result in results}
    (tail,), everywhere = rows["tails"], rows["positions"][-1]
    assert tail["batches"] == 1 and tail["blend, k = 3: tail: 95 %"] is None  # one batch has no interval
    low, high = everywhere["article: 95 %"]
    assert everywhere["position"] == "all" and low < everywhere["article"] < high
    accepted = [row["REST: accepted"] for row in rows["matches"] if row["match"] in ("1", "2", "10-15")]
    assert rows["sd-forms"][0]["SD-T: tokens a step"] > 1.5 and accepted
    tables = (out / "papers.md").read_text()
    assert tables.count("\n## ") == len(wanted) + 1 and tables.count("| phrases |") == tables.count("| other |") > 30
    for name in ("matches", "sizes", "sd-limit", "positions"):
        assert (out / f"{name}.png").stat().st_size > 10_000
    written = (out / "papers.json").stat().st_mtime_ns
    assert lab.main([*call, "--only", *wanted]) == 0 and (out / "papers.json").stat().st_mtime_ns == written
    capsys.readouterr()
    assert lab.main([*call, "--only", "gsd"]) == 2
    assert "gsd needs --models DIR" in capsys.readouterr().err


def test_answers_are_not_known_before_they_come(path, tmp_path, capsys):
    again, other = tmp_path / "again.jsonl", recording(tmp_path / "other.jsonl", seed=1)
    again.write_bytes(path.read_bytes())
    first, second, third = replayed.read_recordings([path, again, other], 0)
    assert first.known == second.known and first.known_of == second.known_of == third.data
    assert third.known_of == first.data and len(third.known) == 24
    assert replayed.read_recordings([path, again], 0)[0].known == ()
    call = ["papers", "--data", str(path), str(again), "--max-tokens", "200", "--out", str(tmp_path / "out"), "--only"]
    assert lab.main([*call, "sd-shift"]) == 2
    assert "sd-shift needs two recordings that differ" in capsys.readouterr().err
    assert lab.main([*call, "sd-shift", "sd-forms"]) == 0
    assert "left out: sd-shift needs two" in capsys.readouterr().out
    assert "another kind" not in (tmp_path / "out" / "papers.md").read_text()


def test_a_recording_of_one_prompt_is_refused(tmp_path, capsys):
    one = recording(tmp_path / "one.jsonl", prompts=1)
    assert lab.main(["papers", "--data", str(one), "--out", str(tmp_path)]) == 2
    assert "has too few prompts" in capsys.readouterr().err
