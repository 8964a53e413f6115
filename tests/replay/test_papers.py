# SPDX-License-Identifier: Apache-2.0
"""The papers' methods follow their definitions, and their claims on the shipped answers are judged as the lab says.

tests/sam_core/test_rules.py has SuffixDecoding's definition.
"""

import random
import re
from collections import Counter, defaultdict

import commands
import pytest
from recording import line, write

from sam_lab.__main__ import main
from sam_lab.papers.gsd import DEPTH, Graph, Gsd, NGrams
from sam_lab.papers.rest import Rest
from sam_lab.recordings import DATA

pytestmark = pytest.mark.slow


def paths(tokens, parents):
    """The tokens on the path to each node."""
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def continuations(texts, context, n_max, m):
    """REST's algorithm 1: up to m tokens after every occurrence of the longest suffix that is followed by a token."""
    for n in range(min(n_max, len(context)), 0, -1):
        suffix = context[-n:]
        found = [t[at + n : at + n + m] for t in texts for at in range(len(t) - n) if t[at : at + n] == suffix]
        if found:
            return found
    return []


@pytest.mark.parametrize("vocabulary", [2, 5])
def test_rest_drafts_the_most_frequent_continuations(vocabulary):
    rng = random.Random(vocabulary)
    drafted = 0
    for _ in range(30):
        texts = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 5))]
        n_max, m, c = rng.randint(1, 8), rng.randint(1, 5), rng.randint(1, 12)
        rest = Rest(texts, n_max, m)
        for number in range(20):
            text = rng.choice([*texts, [rng.randrange(vocabulary) for _ in range(12)]])
            context = text[: rng.randint(0, len(text))]
            rest.start(number, context[:3], None)
            rest.append(number, context[3:])
            found = continuations(texts, context, n_max, m)
            weights = Counter(tuple(text[:end]) for text in found for end in range(1, len(text) + 1))
            made = paths(*rest.propose_tree(number, c))
            assert len({*made}) == len(made) == min(c, len(weights))
            kept = sorted((weights[path] for path in made), reverse=True)
            assert kept == sorted(weights.values(), reverse=True)[: len(made)]
            drafted += len(made)
    assert drafted > 1000


def test_rest_chooses_continuations_at_random():
    texts = [[1000, first, *range(first, first + 20)] for first in range(0, 600, 20)]
    rest = Rest(texts, m=8, chosen=8)
    rest.start(0, [1000], None)
    drafts = [paths(*rest.propose_tree(0, 64)) for _ in range(2)]
    for made in drafts:
        firsts = {path[0] for path in made}
        assert len(firsts) == 8 and len(made) == 64 and firsts <= {*range(0, 600, 20)}
    assert set(drafts[0]) != set(drafts[1])


def test_a_graph_drafts_what_follows_the_first_occurrence():
    """The tree has a b c and d b. The second b is merged with the first, so d b c is drafted too."""
    graph = Graph({(): [(0, 0.6), (3, 0.4)], (0,): [(1, 0.9)], (3,): [(1, 0.8)], (0, 1): [(2, 0.5)]}, {(3, 1): (0, 1)})
    assert sorted(paths(*graph.unfold(64))) == [(0,), (0, 1), (0, 1, 2), (3,), (3, 1), (3, 1, 2)]
    assert graph.unfold(3) == ([0, 1, 3], [-1, 0, -1])
    graph.merged[0, 1] = ()
    assert max(map(len, paths(*graph.unfold(10_000)))) == DEPTH


def test_a_graph_merges_across_branches_only():
    """After 9, branches 1 and 2 both continue with 3 4 and then repeat 3 4. The repetition is not another branch."""
    loop = [3, 4] * 8
    model = NGrams([[9, 1, *loop], [9, 1, *loop], [9, 2, *loop]])
    tree, graph = Gsd(model, tau=0).grow([9]), Gsd(model).grow([9])
    assert graph.merged == {(2, 3, 4): (1, 3, 4)}
    assert len(tree.children) == 2 * DEPTH - 1 and len(graph.children) == DEPTH + 2
    assert tree.unfold(64) == graph.unfold(64)


def test_claims_on_the_shipped_answers(capsys):
    files = [DATA / "evidence" / f"{name}.jsonl.gz" for name in ("code", "rl")]
    assert main(["papers", *map(str, files), "--max-tokens", "2000"]) == 0
    verdicts = defaultdict(list)
    for claim, verdict in re.findall(r"^  (\S.*?)  +[\d.]+ .*  (\w+)$", capsys.readouterr().out, re.MULTILINE):
        verdicts[claim].append(verdict)
    assert sum(found == ["agrees"] * 2 for found in verdicts.values()) == 7
    assert {claim for claim, found in verdicts.items() if "agrees" not in found} == {
        "the tree of earlier outputs gains more than that of the request",
        "n_max = 16 gains more than n_max = 2",
        "n_max = 16 gains more than n_max = 4",
        "graphs gain more than trees",
    }


def test_a_recording_of_one_prompt_is_refused(tmp_path, capsys):
    one = write(tmp_path / "one.jsonl", [line()])
    assert "has too few prompts" in commands.refused(main, capsys, "papers", one)
