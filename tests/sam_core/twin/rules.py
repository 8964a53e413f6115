# SPDX-License-Identifier: Apache-2.0
"""Drafting rules: they turn matches of a text with earlier texts into tokens that may come next.

The twin of csrc/rules.c and of the files that csrc/draft.h lists; csrc/rules.h explains the rules. A path's probability
is an integer out of PATH_ONE.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from sam_core.corpus import END, Corpus

from twin import model as M
from twin.automaton import Index, State, shorter
from twin.model import COMMON, CORPUS, GROUP, HISTORY, REQUEST, Model

MAX_DRAFT = 64
MAX_CANDIDATES = 13  # for the first token of a draft
DEEP_CANDIDATES = 5  # for each later token
MORE = 6  # tokens after a match in a corpus that are looked up
SHORT_MATCH = 4  # tokens; successors are used only if no match has more
ALPHA = 4  # SuffixDecoding's alpha, for the rule `suffix`: a match of p tokens drafts at most ALPHA * p
PATH_ONE = 1 << 30


@dataclass
class Context:
    """The position of a text in each source."""

    index: list[Index | None]  # those of request and group; None: no source, or an empty one
    match: list[tuple[State | None, int]]  # the state of the longest match that something followed, and its length
    past: int  # the group's texts with smaller numbers are its history
    corpus: Corpus | None
    corpus_at: list[tuple[int, int]] | None  # where the text stands in the corpus
    common: bool  # successors are a source; else only those that a source of the request contains are used
    isolated: bool  # successors are not used, and nothing is learned that names tokens
    last: tuple[int, ...]  # the text's last M.LAST tokens, the latest first, -1 for none
    vocab_size: int  # a draft ends before a token of at least this; 0: of none

    def followed_in_past(self, state: State, token: int) -> bool:
        """Whether `token` last followed a match in the group's index, or the next shorter match, in the history."""
        while token not in state.edges and state.link is not None:
            state = state.link
        if token not in state.edges:
            return False
        child = state.edges[token]
        place = child.place if child.again else child.end
        return place is not None and place[0] < self.past


@dataclass
class Match:
    """A string at the end of the text that occurs in a source, with what followed it, as far as it is looked up."""

    source: int
    rank: int  # rank among the matches of the source
    length: int
    followed: int  # number of occurrences that a token follows
    best: int
    newest: int  # the token that followed last; -1 in a corpus, which has no such order
    counts: dict[int, int]

    def bin(self, token: int) -> int:
        """The bin of a candidate."""
        first = M.match_bins(self.source, self.rank, self.length)
        return M.counted_bin(first, self.counts.get(token, 0), self.followed, token == self.newest)

    @property
    def input(self) -> int:
        return self.source * M.RANKS + self.rank


@dataclass
class Candidate:
    """A token that may follow a node, with the parts of its probability."""

    token: int
    source: int
    share: int = 0  # how often the token came in total, if it is among the most frequent
    probability: int = 0  # out of M.ONE
    set: int = 0  # set of weights
    inputs: list[tuple[int, int, int]] = field(default_factory=list)  # (bin, input, stretched probability)
    hashes: list[tuple[int, int]] = field(default_factory=list)  # (entry, stretched probability) by order


@dataclass
class Node:
    """A token of an unfinished draft, or the end of the text, with candidates for the next token."""

    token: int
    path: int  # probability of the path to the node
    depth: int
    match: list[tuple[State | None, int]]
    corpus: list[tuple[int, int, int]]
    last: tuple[int, ...]
    candidates: list[Candidate] = field(default_factory=list)

    def name(self, most: int, token: int, source: int) -> Candidate | None:
        """Return the candidate for `token`, a new one if necessary; None if there are `most` already."""
        found = next((candidate for candidate in self.candidates if candidate.token == token), None)
        if not found and token >= 0 and len(self.candidates) < most:
            found = Candidate(token, source)
            self.candidates.append(found)
        return found


class Drafted(NamedTuple):
    """A token of a draft, with the probability of the path to it and the bin that gave this probability."""

    token: int
    path: int
    source: int
    bin_number: int
    match_length: int

    @property
    def score(self) -> float:
        """The probability that the path to the token is accepted, in the precision of float32."""
        return float(np.float32(self.path)) / PATH_ONE


@dataclass
class Record:
    """A draft and the candidates considered for it, from which the model learns."""

    floor: int = 0  # the draft ends before a path below this; its token is only learned from
    last: tuple[int, ...] = ()  # tokens before the draft, as in Context
    isolated: bool = False
    tokens: list[Drafted] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether the last token was too improbable to be drafted."""
        return bool(self.tokens) and self.tokens[-1].path < self.floor

    @property
    def drafted(self) -> list[Drafted]:
        return self.tokens[: len(self.tokens) - self.cut]


def times(path: int, probability: int) -> int:
    """Return a path's probability times a probability of 12 bits."""
    return path * probability // M.ONE


def draft(model: Model, rule: str, context: Context, k: int, min_prob: float) -> Record:
    """Draft a chain of at most k <= MAX_DRAFT tokens that ends before a path falls below `min_prob`, 0 .. 1."""
    floor = int(float(np.float32(min_prob)) * PATH_ONE)
    if rule == "blend":
        record = _Walk(model, context, floor).draft(k)
    elif rule == "suffix":
        record = _draft_suffix(model, context, k, floor)
    else:
        record = _draft_copy(model, context, k, floor)
    foreign = [at for at, made in enumerate(record.tokens) if 0 < context.vocab_size <= made.token]
    if foreign:
        del record.tokens[foreign[0] :]
        record.nodes = record.nodes if record.tokens else []
    return record


def learn(model: Model, rule: str, record: Record, tokens: list[int], accepted: list[int]) -> None:
    """Learn from the tokens that came after the text that was drafted for.

    Adds to accepted[source] the tokens of the draft that came true.
    """
    if rule == "blend" and record.last and not record.isolated:
        last = record.last
        for token in tokens:
            model.learn_successor(last, token)
            last = (token, *last[:-1])
    for number, (made, token) in enumerate(zip(record.tokens, tokens, strict=False)):
        outcome = made.token == token
        if rule != "blend":
            model.bins[made.bin_number] = M.updated(model.bins[made.bin_number], outcome)
        if not outcome or number == len(record.drafted):
            break
        accepted[made.source] += 1
    for number, (node, token) in enumerate(zip(record.nodes, tokens, strict=False)):
        if number and node.token != tokens[number - 1]:
            break
        for candidate in node.candidates:
            _learn_candidate(model, candidate, candidate.token == token, record.isolated)


def _learn_candidate(model: Model, candidate: Candidate, outcome: bool, isolated: bool) -> None:
    """Move the weights of the set down the gradient of the coding cost, then the means towards the outcome."""
    error = (M.ONE - 1 if outcome else 0) - candidate.probability
    weights = model.weights[candidate.set]
    for bin_number, at, stretched in candidate.inputs:
        weights[at] = _moved(weights[at], error * stretched)
        model.bins[bin_number] = M.updated(model.bins[bin_number], outcome)
    for order, (entry, stretched) in enumerate(candidate.hashes):
        weights[M.TOKEN_INPUT + order] = _moved(weights[M.TOKEN_INPUT + order], error * stretched)
        if not isolated:
            model.tokens[order][entry] = M.updated(model.tokens[order][entry], outcome)
    weights[M.CONSTANT] = _moved(weights[M.CONSTANT], error * 128)


def _moved(weight: int, by: int) -> int:
    """Return weight + by / 2**12, rounded to nearest, halves away from zero, within -M.MOST_WEIGHT .. M.MOST_WEIGHT."""
    weight += by + 2048 >> 12 if by >= 0 else -(2048 - by >> 12)
    return max(-M.MOST_WEIGHT, min(weight, M.MOST_WEIGHT))


# ---- `blend`


class _Walk:
    """A draft whose matches are updated at every token: its nodes, the end of the text first."""

    def __init__(self, model: Model, context: Context, floor: int) -> None:
        self.model, self.context = model, context
        corpus: list[tuple[int, int, int]] = []
        if context.corpus:
            at, size = context.corpus_at, 0
            for length in range(len(at) - 1, 0, -1):
                low, high = at[length]
                if high - low != size and len(corpus) < M.RANKS:
                    corpus.append((low, high, length))
                size = high - low
        self.nodes = [Node(-1, PATH_ONE, 0, context.match, corpus, context.last)]
        self.record = Record(floor, last=context.last, isolated=context.isolated)

    def draft(self, k: int) -> Record:
        while len(self.record.tokens) < k and not self.record.cut:
            node = self.nodes[-1]
            self._consider(node)
            best = max(node.candidates, key=lambda candidate: candidate.probability, default=None)  # the first on a tie
            path = times(node.path, best.probability) if best else 0
            if not path:
                break
            self._emit(node, best, path)
        if self.record.tokens:
            self.record.nodes = self.nodes
        return self.record

    def _emit(self, node: Node, candidate: Candidate, path: int) -> None:
        """Draft a candidate of the last node, and add the next node."""
        context, source = self.context, candidate.source
        if source == GROUP and context.past:
            state, length = node.match[GROUP]
            if context.followed_in_past(state if length else context.index[GROUP].root, candidate.token):
                source = HISTORY
        length = self._match_length(node, candidate)
        self.record.tokens.append(Drafted(candidate.token, path, source, candidate.inputs[0][0], length))
        self.nodes.append(Node(candidate.token, path, node.depth + 1, [], [], ()))

    def _match_length(self, node: Node, candidate: Candidate) -> int:
        """Length of the longest match in its source that the candidate continues; 0: a successor, or only frequent."""
        context, token = self.context, candidate.token
        if candidate.source == COMMON or candidate.inputs[0][0] >= M.BINS:
            return 0
        if candidate.source == CORPUS:
            return next(match[2] for match in node.corpus if context.corpus.extend(match, token))
        return next((size for at, size in shorter(*node.match[candidate.source]) if token in at.edges), 0)

    def _advance(self, before: Node, node: Node) -> None:
        """Extend the previous node's matches by the node's token."""
        token = node.token
        node.last = (token, *before.last[:-1])
        pairs = zip(self.context.index, before.match, strict=True)
        node.match = [index.advance(*match, token) if match[1] else (None, 0) for index, match in pairs]
        size = 0
        for match in before.corpus:
            longer = self.context.corpus.extend(match, token)
            if longer and longer[1] - longer[0] != size:
                node.corpus.append(longer)
                size = longer[1] - longer[0]

    def _matches(self, node: Node) -> list[Match]:
        """Up to M.RANKS matches of each source: the longest that something followed, then more frequent ones."""
        found: list[Match] = []
        for source in (REQUEST, GROUP):
            index, rank, followed = self.context.index[source], 0, 0
            for state, length in shorter(*node.match[source]):
                if rank < M.RANKS and state.followed != followed:
                    followed = state.followed
                    newest = index.newest(state)
                    found.append(Match(source, rank, length, followed, state.best, newest, state.counts))
                    rank += 1
        followed = [(at, counts) for at in node.corpus if (counts := dict(self.context.corpus.next(at, MORE)))]
        for rank, ((low, high, length), counts) in enumerate(followed[: M.RANKS]):
            found.append(Match(CORPUS, rank, length, high - low, next(iter(counts)), -1, counts))
        return found

    def _consider(self, node: Node) -> None:
        """Up to M.RANKS matches of each source and a successor name candidates and vote on all of them."""
        if node.depth:
            self._advance(self.nodes[-2], node)
        matches = self._matches(node)
        most = DEEP_CANDIDATES if node.depth else MAX_CANDIDATES
        for match in sorted(matches, key=lambda match: match.rank):
            node.name(most, match.best, match.source)
            node.name(most, match.newest, match.source)
        shared_source = GROUP if self.context.index[GROUP] else REQUEST
        shared = self.context.index[shared_source]
        order, successor, times = self._successor(node, shared)
        node.name(most, successor, COMMON if self.context.common else shared_source)
        named = len(node.candidates)  # by a match or successor; tokens that are only frequent look up no match
        if shared and shared.frequent[1] and not named:
            token, count = shared.frequent
            node.name(most, token, shared_source).share = count
        kind = 0 if node.depth == 0 else 1 if node.depth < 3 else 2
        lengths = node.match[REQUEST][1], node.match[GROUP][1], node.corpus[0][2] if node.corpus else 0
        request, group, corpus = (M.class_of(length, M.COARSE_CLASSES) for length in lengths)
        first_set = ((request * M.CLASSES + group) * 4 + (corpus + 1) // 2) * M.KINDS
        for number, candidate in enumerate(node.candidates):
            candidate.set = first_set + (kind if number < named else M.FREQUENT)
            for match in matches if number < named else ():
                self._add_input(candidate, match.bin(candidate.token), match.input)
            if successor >= 0 and number < named:
                bin_number = M.successor_bin(order, times, candidate.token == successor)
                self._add_input(candidate, bin_number, M.SUCCESSOR_INPUT)
            if shared and not matches:
                self._add_input(candidate, M.share_bin(candidate.share, shared.appended), M.SHARE_INPUT)
            self._mix(node, candidate)

    def _successor(self, node: Node, index: Index | None) -> tuple[int, int, int]:
        """The successor of the most tokens that may be drafted: (order, token, times); token -1: there is none."""
        named = {candidate.token for candidate in node.candidates}
        short = all(length <= SHORT_MATCH for _, length in node.match)  # longer matches are more reliable
        if short and not self.context.isolated:
            for order in reversed(range(M.ORDERS)):
                token, times = self.model.successor(order, node.last)
                if token >= 0 and (self.context.common or token in named or (index and token in index.root.edges)):
                    return order, token, times
        return 0, -1, 0

    def _add_input(self, candidate: Candidate, bin_number: int, at: int) -> None:
        candidate.inputs.append((bin_number, at, M.STRETCH[M.probability(self.model.bins[bin_number])]))

    def _mix(self, node: Node, candidate: Candidate) -> None:
        """Mix the inputs of a candidate: squash(sum of weight * stretch)."""
        weights = self.model.weights[candidate.set]
        total = weights[M.CONSTANT] * 256
        for _, at, stretched in candidate.inputs:
            total += weights[at] * stretched
        for order in range(M.TOKENS):
            at = M.token_hash(order, candidate.token, *node.last[:2])
            entry = self.model.tokens[order][at]
            stretched = M.divided(M.STRETCH[M.probability(entry)] * M.trust(entry), 256)
            candidate.hashes.append((at, stretched))
            total += weights[M.TOKEN_INPUT + order] * stretched
        candidate.probability = M.squash(M.divided(total, 65536))


# ---- `oldest` and `newest`


def _find_copy(context: Context, source: int) -> tuple[int, int, list[int]]:
    """Return the longest match's length in one source, the source or HISTORY, and what followed; length 0: none."""
    if source == CORPUS:
        corpus = context.corpus
        for length in range(len(context.corpus_at) - 1 if corpus else 0, 0, -1):
            # A corpus has no order for `newest` to follow: both rules choose the first occurrence.
            at = corpus.first((*context.corpus_at[length], length))
            tokens = [int(token) for token in corpus.tokens[at : at + MAX_DRAFT]]
            tokens = tokens[: tokens.index(END)] if END in tokens else tokens
            if tokens:
                return length, source, tokens
        return 0, source, []
    for state, length in shorter(*context.match[source]):
        if state.place:
            text, position = state.place
            past = source == GROUP and text < context.past
            tokens = context.index[source].texts[text][position : position + MAX_DRAFT]
            return length, HISTORY if past else source, tokens
    return 0, source, []


def _draft_copy(model: Model, context: Context, k: int, floor: int) -> Record:
    """Draft a copy of what followed the longest match of all sources; on a tie, the first source's."""
    copies = [(*_find_copy(context, source), source) for source in (REQUEST, GROUP, CORPUS)]
    longest, source, tokens, bin_source = max(copies, key=lambda copy: copy[0])
    record, path = Record(floor), PATH_ONE
    for depth, token in enumerate(tokens[:k]):  # `depth` is also used in place of a count's class
        bin_number = M.copied_bin(bin_source, longest, depth)
        path = times(path, M.probability(model.bins[bin_number]))
        if not path or record.cut:
            break
        record.tokens.append(Drafted(token, path, source, bin_number, longest + depth))
    return record


# ---- `suffix`


@dataclass
class _String:
    """A string of a source that a draft has reached, as a `state` of an index or at `at` in the corpus."""

    source: int
    length: int
    state: State | None
    at: tuple[int, int, int] | None

    def best(self, context: Context) -> tuple[int, int, int]:
        """The most frequent token after the string, its count, and the count of all following tokens; 0: none."""
        if self.source == CORPUS:
            (token, count), *_ = context.corpus.next(self.at, 1) or [(-1, 0)]
            return token, count, self.at[1] - self.at[0]
        return self.state.best, self.state.counts.get(self.state.best, 0), self.state.followed

    def descend(self, context: Context, token: int) -> _String:
        if self.source == CORPUS:
            return _String(CORPUS, self.length, None, context.corpus.extend(self.at, token))
        state, length = context.index[self.source].near(self.state.edges[token], self.length + 1)
        return _String(self.source, length, state, None)


def _expand(model: Model, context: Context, string: _String, most: int) -> tuple[int, list[Drafted]]:
    """ExpandSpeculationTree of the paper's algorithm 1 for a chain: from one string, always by the most frequent token.

    Returns the sum of the shares of the tokens (D of the paper), of PATH_ONE, and the draft.
    """
    score, made, share, path = 0, [], PATH_ONE, PATH_ONE
    while len(made) < most:
        token, count, followed = string.best(context)
        share = share * count // followed if count else 0
        if not share:
            break
        score += share
        bin_number = M.counted_bin(M.match_bins(string.source, 0, string.length), count, followed, False)
        path = times(path, M.probability(model.bins[bin_number]))
        made.append(Drafted(token, path, string.source, bin_number, string.at[2] if string.at else string.length))
        string = string.descend(context, token)
    return score, made


def _strings(context: Context) -> list[_String]:
    """Return every match of every source, the longest of each source first."""
    strings = [_String(source, n, at, None) for source in (REQUEST, GROUP) for at, n in shorter(*context.match[source])]
    lengths = range(len(context.corpus_at) - 1 if context.corpus else 0, 0, -1)
    return strings + [_String(CORPUS, length, None, (*context.corpus_at[length], length)) for length in lengths]


def _draft_suffix(model: Model, context: Context, k: int, floor: int) -> Record:
    """GenerateCandidateTree: try every match of every source. The best score wins, or the first one on a tie."""
    record, strings = Record(floor), _strings(context)
    tried = [(*_expand(model, context, each, min(k, ALPHA * each.length)), each) for each in strings]
    _, best, start = max(tried, key=lambda trial: trial[0], default=(0, [], None))
    past = best and best[0].source == GROUP and context.past
    past = past and context.followed_in_past(start.state, best[0].token)
    for made in best:
        record.tokens.append(made._replace(source=HISTORY) if past else made)
        if record.cut:
            break
    return record
