# SPDX-License-Identifier: Apache-2.0
"""SuffixDecoding in plain Python against its paper's algorithm, by counting strings."""

import random

import pytest
from suffix_paper import paths, scores

from research.exact import Exact


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("trees", ["both", "global", "request"])
def test_exact_is_the_paper_s_algorithm(trees, tree):
    rng = random.Random(3)
    outputs = [[rng.randrange(4) for _ in range(rng.randint(1, 30))] for _ in range(8)]
    text, drafted = [rng.randrange(4) for _ in range(5)], 0
    sources = {"both": ([text], outputs), "global": (outputs,), "request": ([text],)}[trees]
    drafter = Exact(outputs, trees, alpha=2)
    drafter.start(0, text, None)
    for _ in range(15):
        tokens, parents = drafter._propose(0, 9, tree)
        best, own = scores(sources, text, 9, 2, paths(tokens, parents), tree)
        assert own == best
        drafted += len(tokens)
        drafter.append(0, row := [rng.randrange(4)])
        text += row
    assert drafted > 30
