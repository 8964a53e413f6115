# SPDX-License-Identifier: Apache-2.0
"""The experiments on the papers' claims: what they measure, and the command that runs them."""

import json
import random
from collections import Counter

import pytest
import torch
from sam_core.corpus import build_corpus

from sam_lab import __main__ as lab
from sam_lab.methods.draft_model import Node
from sam_lab.methods.exact import Exact
from sam_lab.methods.pool import SamDrafter
from sam_lab.papers import article, merges, replayed, shapes
from sam_lab.recordings import read_answers
from sam_lab.replay import interval, replay
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
    assert sum(drafter.matches) == figures["steps"] == sum(steps for _, steps in counts.values())
    assert sum(tokens for tokens, _ in counts.values()) == figures["tokens"]
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
    assert interval(half, half) == [1.0, 1.0]


def test_classes_of_match_lengths():
    counts, accepted = [2, 3, 0, 0, 0, 1, 1] + [0] * 9 + [3], [0, 6, 0, 0, 0, 4, 5] + [0] * 9 + [30]
    found = replayed.by_length(counts, accepted)
    assert found["none"] == (0.2, 0) and found["1"] == (0.3, 2)
    assert found["2"] == (0, None) and found["5-6"] == (0.2, 4.5) and found["16 or more"] == (0.3, 10)


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
    rows = {result["experiment"]: result["rows"] for result in results}
    accepted = [row["REST: accepted"] for row in rows["matches"] if row["match"] in ("1", "2", "10-15")]
    assert rows["sd-forms"][0]["SD-T: tokens a step"] > 1.5 and accepted
    tables = (out / "papers.md").read_text()
    assert tables.count("\n## ") == len(wanted) - 1 and tables.count("| phrases |") == tables.count("| other |") > 30
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
