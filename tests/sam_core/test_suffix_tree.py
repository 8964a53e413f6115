# SPDX-License-Identifier: Apache-2.0
"""Rule `suffix` on the automaton against SuffixDecoding's algorithm 1 on plain suffix trees with counts.

A suffix automaton with counts of what followed holds what a suffix tree with counts of nodes holds: a node's count is
how often its string occurs with something before it given, so COUNT(N) / sum over siblings is the share of the token
among what followed the parent's string. The trees here are written down node by node, and shares are fractions.
"""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from twin.rules import ALPHA, MORE

import sam_core

TEXT = st.lists(st.integers(0, MORE - 2), max_size=14)


class Node:
    def __init__(self):
        self.count, self.children = 0, {}


class SuffixTree:
    """All suffixes of some texts, one node a token."""

    def __init__(self, texts):
        self.root = Node()
        for text in texts:
            for begin in range(len(text)):
                node = self.root
                for token in text[begin:]:
                    node = node.children.setdefault(token, Node())
                    node.count += 1

    def match(self, pattern):
        """MatchPattern: the node of a pattern, None if it does not occur."""
        node = self.root
        for token in pattern:
            node = node.children.get(token)
            if node is None:
                return None
        return node


def offers_of(node, share, parent):
    """(D, parent, token, node) for each child of a node with this D."""
    total = sum(child.count for child in node.children.values())
    return [(share * Fraction(child.count, total), parent, token, child) for token, child in node.children.items()]


def expand(node, most):
    """ExpandSpeculationTree: D of each node taken, the largest first."""
    offers, taken = offers_of(node, Fraction(1), -1), []
    while offers and len(taken) < most:
        best = max(offers, key=lambda offer: offer[0])
        offers.remove(best)
        taken.append(best[0])
        offers += offers_of(best[3], best[0], len(taken) - 1)
    return taken


def shares_of(node, tokens, parents):
    """D of each node of a draft that starts behind this node of a suffix tree; None if the tree has no such node."""
    nodes, shares = {-1: (node, Fraction(1))}, []
    for number, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        above, share = nodes[parent]
        offer = next((offer for offer in offers_of(above, share, parent) if offer[2] == token), None)
        if offer is None:
            return None
        nodes[number] = (offer[3], offer[0])
        shares.append(offer[0])
    return shares


@settings(max_examples=150, deadline=None)
@given(outputs=st.lists(TEXT, max_size=4), prompt=TEXT, answer=TEXT, k=st.integers(1, 24))
def test_the_automaton_drafts_what_two_suffix_trees_draft(outputs, prompt, answer, k):
    pool = sam_core.Pool(rule="suffix", sources=("request", "group", "history"))
    out, parents, lengths = np.zeros((1, k), np.int32), np.zeros((1, k), np.int32), np.zeros(1, np.int32)
    scores = np.zeros((1, k), np.float32)

    def step(slot, tokens, max_drafts):
        new, count = np.array(tokens, np.int32), np.array([len(tokens)], np.int32)
        pool.step(np.array([slot], np.int32), new, count, max_drafts, out, lengths, scores, parents)

    # A first token of its own for each text: a prompt that begins as a text of its named group would continue it.
    outputs = [[100 + number, *output] for number, output in enumerate(outputs)]
    prompt = [99, *prompt]
    for output in outputs:  # online insertion: each output joins the global tree when it ends
        slot = pool.open([], b"global")
        step(slot, output, 0)
        pool.close(slot, keep=True)
    slot = pool.open(prompt, b"global")
    step(slot, answer, k)
    size, text = int(lengths[0]), prompt + answer
    tokens, above = out[0, :size].tolist(), parents[0, :size].tolist()

    best, own = Fraction(0), Fraction(0)
    for tree in (SuffixTree([*outputs, text]), SuffixTree([text])):
        for p in range(1, len(text) + 1):
            node = tree.match(text[-p:])
            if node is None:
                continue
            most = min(k, ALPHA * p)
            best = max(best, sum(expand(node, most), Fraction(0)))
            shares = shares_of(node, tokens, above)
            if shares is not None and len(shares) <= most and shares == expand(node, len(shares)):
                own = max(own, sum(shares, Fraction(0)))
    assert abs(own - best) < Fraction(1, 10**6)
    assert bool(tokens) == (best > 0)
