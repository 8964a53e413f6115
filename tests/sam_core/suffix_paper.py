# SPDX-License-Identifier: Apache-2.0
"""SuffixDecoding by its paper's algorithm 1, by counting strings: the oracle of rule `suffix`."""

from collections import Counter
from fractions import Fraction


def paths(tokens, parents):
    """The string that leads to each node of a draft."""
    found = []
    for token, parent in zip(tokens, parents, strict=True):
        assert parent < len(found)
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def offers_of(texts, string, share):
    """(D, the share of its path, and the string with it) for each token that followed a string, by occurrences."""
    n = len(string)
    places = [(text, at + n) for text in texts for at in range(len(text) - n) if text[at : at + n] == string]
    counts = Counter(text[at] for text, at in places)
    return [(share * Fraction(count, counts.total()), [*string, token]) for token, count in counts.items()]


def expand(texts, string, most, tree=True):
    """ExpandSpeculationTree: D of each node taken, the largest first; a chain never leaves its last token."""
    offers, taken = offers_of(texts, string, Fraction(1)), []
    while offers and len(taken) < most:
        best = max(offers, key=lambda offer: offer[0])
        offers.remove(best)
        taken.append(best[0])
        offers = (offers if tree else []) + offers_of(texts, best[1], best[0])
    return taken


def shares_of(texts, string, draft):
    """D of each node of a draft, its paths, behind this string; None if the texts have no such node."""
    shares = {(): Fraction(1)}
    for path in draft:
        offers = offers_of(texts, [*string, *path[:-1]], shares[path[:-1]])
        if not (share := [share for share, longer in offers if longer[-1] == path[-1]]):
            return None
        (shares[path],) = share
    return [*shares.values()][1:]


def scores(sources, text, k, alpha, draft, tree=True):
    """GenerateCandidateTree: the best sum of shares behind any suffix of a text in any source, and a draft's own sum,
    behind the suffix that gives it the most; sources: lists of texts; draft: its paths."""
    best = own = Fraction(0)
    for texts in sources:
        for p in range(1, len(text) + 1):
            most = min(k, alpha * p)
            best = max(best, sum(expand(texts, text[-p:], most, tree), Fraction(0)))
            shares = shares_of(texts, text[-p:], draft)
            if shares and len(shares) <= most and shares == sorted(shares, reverse=True):
                own = max(own, sum(shares))
    return best, own
