# SPDX-License-Identifier: Apache-2.0
"""Drafting rules, from where a text matched earlier text to the tokens that may come next.

The twin of csrc/rules.c and of the files that csrc/draft.h lists; csrc/rules.h explains the rules. A path's probability
is an integer, of PATH_ONE.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from sam_core.corpus import END, Corpus

from twin import model as M
from twin.automaton import Index, State, shorter
from twin.model import COMMON, CORPUS, GROUP, HISTORY, REQUEST, Model

MAX_DRAFT = 64
MAX_CANDIDATES = 24  # of the end of the text
DEEP_CANDIDATES = 5  # of a node below
MORE = 6  # candidates that a match names for a tree
COPIES = 8
SHORT_MATCH = 4  # tokens; successors are used only if no match has more
ALPHA = 4  # of `suffix`, SuffixDecoding's alpha: a match of p tokens drafts at most ALPHA * p
PATH_ONE = 1 << 30


@dataclass
class Context:
    """Where a text stands in each source."""

    index: list[Index | None]  # of the request and of the group; None: not a source, or nothing in it
    match: list[tuple[State | None, int]]  # the state of the longest match that something followed, and its length
    past: int  # the group's texts with smaller numbers are its history
    corpus: Corpus | None
    corpus_at: list[tuple[int, int]] | None  # where the text stands in the corpus
    common: bool  # successors are a source; else only those that a source of the request contains are used
    isolated: bool  # successors are not used, and nothing is learned that names tokens
    last: tuple[int, ...]  # the text's last M.LAST tokens, the latest first, -1 for none
    vocab_size: int  # a draft ends before a token of at least this; 0: of none

    def followed_in_past(self, state: State, token: int) -> bool:
        """Whether `token` followed a match in the group's index, or the next shorter one, in the history last."""
        while token not in state.edges and state.link is not None:
            state = state.link
        if token not in state.edges:
            return False
        child = state.edges[token]
        place = child.place if child.again else child.end
        return place is not None and place[0] < self.past


@dataclass
class Match:
    """A string that the text ends with and that stood in a source, with what followed it.

    `counts` has the successors that were looked up, the most frequent first: of an index all that the C lists.
    """

    source: int
    rank: int  # among the matches of the source
    length: int
    followed: int  # occurrences that a token follows
    newest: int  # the token that followed last; -1 in a corpus, which has no such order
    counts: dict[int, int]
    state: State | None = None

    @property
    def best(self) -> int:
        return next(iter(self.counts))

    def bin(self, token: int) -> int:
        """The bin of a candidate."""
        count = (self.state.counts if self.state else self.counts).get(token, 0)
        first = M.match_bins(self.source, self.rank, self.length)
        return M.counted_bin(first, count, self.followed, token == self.newest)

    @property
    def input(self) -> int:
        return self.source * M.RANKS + self.rank


@dataclass
class Candidate:
    """A token that may follow a node, with what its probability was made of."""

    token: int
    source: int
    share: int = 0  # how often the token came in all, if it is among the most frequent
    probability: int = 0  # of M.ONE
    set: int = 0  # of weights
    inputs: list[tuple[int, int, int]] = field(default_factory=list)  # (bin, input, stretched probability)
    hashes: list[tuple[int, int]] = field(default_factory=list)  # (entry, stretched probability) by order


@dataclass
class Node:
    """A token of a draft in the making, or the end of the text, with what may follow it."""

    token: int
    parent: Node | None
    path: int  # probability of the path to the node
    draft: int  # number of its token in the draft, -1: the end of the text
    depth: int
    match: list[tuple[State | None, int]]
    corpus: list[tuple[int, int, int]]
    last: tuple[int, ...]
    considered: bool = False
    candidates: list[Candidate] = field(default_factory=list)
    drafted: set[int] = field(default_factory=set)  # numbers of candidates
    best: int = 0  # candidate to be drafted next
    best_path: int = 0  # its path's probability; 0: none is left

    def name(self, most: int, token: int, source: int) -> Candidate | None:
        """The candidate for `token`, a new one if need be; None if there are `most` already."""
        found = next((candidate for candidate in self.candidates if candidate.token == token), None)
        if not found and token >= 0 and len(self.candidates) < most:
            found = Candidate(token, source)
            self.candidates.append(found)
        return found

    def find_best(self) -> None:
        """Find the most probable candidate that is not drafted yet, the first on a tie."""
        left = [number for number in range(len(self.candidates)) if number not in self.drafted]
        self.best = max(left, key=lambda number: self.candidates[number].probability, default=-1)
        self.best_path = times(self.path, self.candidates[self.best].probability) if left else 0


class Drafted(NamedTuple):
    """A token of a draft, with the probability of the path to it and the bin that this was read from."""

    token: int
    parent: int
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
    """A draft and what was considered for it, to learn from."""

    floor: int = 0  # the draft ends before a path below it, whose token is only learned from
    last: tuple[int, ...] = ()  # tokens before the draft, as of Context
    isolated: bool = False
    tokens: list[Drafted] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether the last token is too improbable to be drafted."""
        return bool(self.tokens) and self.tokens[-1].path < self.floor

    @property
    def drafted(self) -> list[Drafted]:
        return self.tokens[: len(self.tokens) - self.cut]


def times(path: int, probability: int) -> int:
    """A path's probability times one of 12 bits."""
    return path * probability // M.ONE


def draft(model: Model, rule: str, context: Context, k: int, min_prob: float, tree: bool) -> Record:
    """Draft a chain or tree of at most k <= MAX_DRAFT tokens that ends before a path falls below `min_prob`, 0 .. 1."""
    floor = int(float(np.float32(min_prob)) * PATH_ONE)
    if rule in ("count", "blend"):
        record = _Walk(model, rule, context, tree, floor).draft(k)
    elif rule == "suffix":
        record = _draft_suffix(model, context, k, floor, tree)
    else:
        record = _draft_copies(model, context, k, floor, tree)
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
    at = -1  # drafted token that came true last
    for token in tokens:
        came = None
        for number, made in enumerate(record.tokens):
            if made.parent == at:
                outcome = made.token == token
                came = number if outcome else came
                if rule != "blend":
                    model.bins[made.bin_number] = M.updated(model.bins[made.bin_number], outcome)
        if came is None or came == len(record.drafted):
            break
        accepted[record.tokens[came].source] += 1
        at = came
    node = record.nodes[0] if record.nodes and rule == "blend" else None
    for token in tokens:
        if node is None:
            break
        for candidate in node.candidates:
            _learn_candidate(model, candidate, candidate.token == token, record.isolated)
        node = next((n for n in record.nodes if n.parent is node and n.token == token), None)


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
    """A weight moved by by / 2**12, rounded to nearest, halves away from zero; at most M.MOST_WEIGHT either way."""
    weight += by + 2048 >> 12 if by >= 0 else -(2048 - by >> 12)
    return max(-M.MOST_WEIGHT, min(weight, M.MOST_WEIGHT))


# ---- `count` and `blend`


class _Walk:
    """A draft that is matched again at every token: its nodes, the end of the text first."""

    def __init__(self, model: Model, rule: str, context: Context, tree: bool, floor: int) -> None:
        self.model, self.rule, self.context, self.tree = model, rule, context, tree
        corpus: list[tuple[int, int, int]] = []
        if context.corpus:
            at, size = context.corpus_at, 0
            for length in range(len(at) - 1, 0, -1):
                low, high = at[length]
                if high - low != size and len(corpus) < M.RANKS:
                    corpus.append((low, high, length))
                size = high - low
        self.nodes = [Node(-1, None, PATH_ONE, -1, 0, context.match, corpus, context.last)]
        self.record = Record(floor, last=context.last, isolated=context.isolated)

    def draft(self, k: int) -> Record:
        while len(self.record.tokens) < k and not self.record.cut:
            # A node that is not considered yet can offer at most its own path's probability.
            nodes = self.nodes if self.tree else self.nodes[-1:]
            best = max(nodes, key=lambda node: node.best_path if node.considered else node.path)
            if not best.considered:
                self._consider(best)
            elif best.best_path:
                self._emit_best(best)
                best.find_best()
            else:
                break
        if self.rule == "blend" and self.record.tokens:  # `count` learns from what it drafted alone
            self.record.nodes = self.nodes
        return self.record

    def _emit_best(self, node: Node) -> None:
        """Draft the best candidate of a node and add the node behind it."""
        candidate, context = node.candidates[node.best], self.context
        source = candidate.source
        if source == GROUP and context.past:
            state, length = node.match[GROUP]
            if context.followed_in_past(state if length else context.index[GROUP].root, candidate.token):
                source = HISTORY
        length = self._match_length(node, candidate)
        number, bin_number = len(self.record.tokens), candidate.inputs[0][0]
        self.record.tokens.append(Drafted(candidate.token, node.draft, node.best_path, source, bin_number, length))
        node.drafted.add(node.best)
        self.nodes.append(Node(candidate.token, node, node.best_path, number, node.depth + 1, [], [], ()))

    def _match_length(self, node: Node, candidate: Candidate) -> int:
        """Tokens of the longest match in the candidate's source that it continues; 0: a successor or only frequent."""
        context, token = self.context, candidate.token
        if candidate.source == COMMON or candidate.inputs[0][0] >= M.BINS:
            return 0
        if candidate.source == CORPUS:
            return next(match[2] for match in node.corpus if context.corpus.extend(match, token))
        return next((size for at, size in shorter(*node.match[candidate.source]) if token in at.edges), 0)

    def _consider(self, node: Node) -> None:
        if node.depth:
            self._advance(node)
        node.considered = True
        (self._consider_count if self.rule == "count" else self._consider_blend)(node)
        node.find_best()

    def _advance(self, node: Node) -> None:
        """Move the matches of a node's parent on by the node's token."""
        parent, token = node.parent, node.token
        node.last = (token, *parent.last[:-1])
        pairs = zip(self.context.index, parent.match, strict=True)
        node.match = [index.advance(*match, token) if match[1] else (None, 0) for index, match in pairs]
        size = 0
        for match in parent.corpus:
            longer = self.context.corpus.extend(match, token)
            if longer and longer[1] - longer[0] != size:
                node.corpus.append(longer)
                size = longer[1] - longer[0]

    def _matches(self, node: Node, most: int) -> list[Match]:
        """Up to `most` of each source: the longest that something followed, then those with more occurrences."""
        found: list[Match] = []
        for source in (REQUEST, GROUP):
            index, rank, followed = self.context.index[source], 0, 0
            for state, length in shorter(*node.match[source]):
                if rank < most and state.followed != followed:
                    followed = state.followed
                    counts = dict(index.candidates(state, MORE))
                    found.append(Match(source, rank, length, followed, index.newest(state), counts, state))
                    rank += 1
        followed = [(at, counts) for at in node.corpus if (counts := dict(self.context.corpus.next(at, MORE)))]
        for rank, ((low, high, length), counts) in enumerate(followed[:most]):
            found.append(Match(CORPUS, rank, length, high - low, -1, counts))
        return found

    def _consider_count(self, node: Node) -> None:
        """The longest match that something followed, the first source's on a tie, names the candidates."""
        matches = self._matches(node, 1)
        for match in [max(matches, key=lambda match: match.length)] if matches else []:
            most = DEEP_CANDIDATES if self.tree else 1
            for token in (match.best, match.newest, *match.counts) if self.tree else (match.best,):
                node.name(most, token, match.source)
            for candidate in node.candidates:
                bin_number = match.bin(candidate.token)
                candidate.probability = M.probability(self.model.bins[bin_number])
                candidate.inputs.append((bin_number, match.input, 0))

    def _consider_blend(self, node: Node) -> None:
        """Up to M.RANKS matches of each source and a successor name candidates and vote on all of them."""
        matches = self._matches(node, M.RANKS)
        most = DEEP_CANDIDATES if node.depth else MAX_CANDIDATES
        for match in sorted(matches, key=lambda match: match.rank):
            node.name(most, match.best, match.source)
            node.name(most, match.newest, match.source)
        if self.tree and node.path > PATH_ONE // 4:
            for match in matches:
                for token in match.counts:
                    node.name(most, token, match.source)
        shared_source = GROUP if self.context.index[GROUP] else REQUEST
        shared = self.context.index[shared_source]
        order, successor, times = self._successor(node, shared)
        node.name(most, successor, COMMON if self.context.common else shared_source)
        named = len(node.candidates)  # by a match or successor; what is only frequent asks no match
        if shared and (self.tree or not named):
            wanted = 1
            if self.tree and node.depth:
                wanted = 0 if named else 3
            elif self.tree:
                wanted = 8 if node.match[shared_source][1] >= 4 else len(shared.frequent)
            for token, count in shared.frequent[:wanted]:
                candidate = node.name(most, token, shared_source)
                if candidate:
                    candidate.share = count
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
            if shared and (self.tree or not matches):
                self._add_input(candidate, M.share_bin(candidate.share, shared.appended), M.SHARE_INPUT)
            self._mix(node, candidate)

    def _successor(self, node: Node, index: Index | None) -> tuple[int, int, int]:
        """The successor of the most tokens that may be drafted: (order, token, times); token -1: there is none."""
        named = {candidate.token for candidate in node.candidates}
        short = all(length <= SHORT_MATCH for _, length in node.match)  # longer matches know better
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


@dataclass
class _Copy:
    """What followed a match: `tokens`, of which `depth` were drafted up to drafted token `node`."""

    source: int
    length: int  # of the match
    tokens: list[int]
    past: bool = False
    node: int = -1
    depth: int = 0
    path: int = PATH_ONE


def _find_copy(context: Context, source: int, most: int) -> _Copy | None:
    """The longest match of at most `most` tokens in one source, with what followed it."""
    if source == CORPUS:
        corpus = context.corpus
        for length in range(min(len(context.corpus_at) - 1, most) if corpus else 0, 0, -1):
            # `newest` has no order to go by in a corpus: both rules take the first occurrence.
            at = corpus.first((*context.corpus_at[length], length))
            tokens = [int(token) for token in corpus.tokens[at : at + MAX_DRAFT]]
            tokens = tokens[: tokens.index(END)] if END in tokens else tokens
            if tokens:
                return _Copy(source, length, tokens)
        return None
    for state, length in shorter(*context.match[source]):
        if length <= most and state.place:
            text, position = state.place
            tokens = context.index[source].texts[text][position : position + MAX_DRAFT]
            return _Copy(source, length, tokens, past=source == GROUP and text < context.past)
    return None


def _find_copies(context: Context, wanted: int) -> list[_Copy]:
    """The longest matches of all sources, the first source on a tie; of one source each is shorter than the last."""
    copies: list[_Copy] = []
    most = {REQUEST: 1 << 32, GROUP: 1 << 32, CORPUS: 1 << 32}
    while len(copies) < wanted:
        found = [copy for source in most if (copy := _find_copy(context, source, most[source]))]
        if not found:
            break
        copies.append(max(found, key=lambda copy: copy.length))
        most[copies[-1].source] = copies[-1].length - 1
    return copies


def _draft_copies(model: Model, context: Context, k: int, floor: int, tree: bool) -> Record:
    """Copies go on side by side, always the one whose next token is most probable; equal beginnings are one."""
    record, copies = Record(floor), _find_copies(context, COPIES if tree else 1)
    while len(record.tokens) < k and not record.cut:
        offers = []
        for copy in copies:
            if copy.depth < len(copy.tokens):
                # `depth` counts once more in the place of a count's class.
                bin_number = M.copied_bin(copy.source, copy.length, copy.depth)
                offers.append((times(copy.path, M.probability(model.bins[bin_number])), bin_number, copy))
        path, bin_number, best = max(offers, key=lambda offer: offer[0], default=(0, 0, None))
        if not path:
            break
        made = best.tokens[best.depth], best.node
        pairs = [(drafted.token, drafted.parent) for drafted in record.tokens]
        if made not in pairs:
            pairs.append(made)
            source = HISTORY if best.past else best.source
            record.tokens.append(Drafted(*made, path, source, bin_number, best.length + best.depth))
        best.depth += 1
        best.node = pairs.index(made)
        best.path = record.tokens[best.node].path
    return record


# ---- `suffix`


@dataclass
class _String:
    """A string of a source that a draft has come to, in `state` of an index or at `at` in the corpus."""

    source: int
    length: int
    state: State | None
    at: tuple[int, int, int] | None

    def children(self, context: Context) -> tuple[list[tuple[int, int]], int]:
        """The most frequent tokens after the string with their counts, and how many tokens followed in all."""
        if self.source == CORPUS:
            return context.corpus.next(self.at, MORE), self.at[1] - self.at[0]
        return context.index[self.source].candidates(self.state, MORE), self.state.followed

    def descend(self, context: Context, token: int) -> _String:
        if self.source == CORPUS:
            return _String(CORPUS, self.length, None, context.corpus.extend(self.at, token))
        state, length = context.index[self.source].near(self.state.edges[token], self.length + 1)
        return _String(self.source, length, state, None)


def _expand(model: Model, context: Context, start: _String, most: int, tree: bool) -> tuple[int, list[Drafted]]:
    """ExpandSpeculationTree of the paper's algorithm 1, from one string; a chain never leaves its last token.

    Of each string only the first MORE children that `Index.candidates` or `Corpus.next` name are offered. Returns the
    sum of the shares of the tokens (D of the paper), of PATH_ONE, and the draft.
    """
    score, made, offered, string, share = 0, [], 0, start, PATH_ONE
    offers: list[tuple] = []  # a heap: the largest share first, the first offered on a tie
    while True:
        offers = offers if tree else []
        children, followed = string.children(context)
        for token, count in children:
            offered += 1
            heapq.heappush(
                offers, (-(share * count // followed), offered, string, len(made) - 1, token, count, followed)
            )
        if len(made) == most or not offers or not offers[0][0]:
            return score, made
        share, _, string, parent, token, count, followed = heapq.heappop(offers)
        share = -share
        score += share
        bin_number = M.counted_bin(M.match_bins(string.source, 0, string.length), count, followed, False)
        path = times(PATH_ONE if parent < 0 else made[parent].path, M.probability(model.bins[bin_number]))
        made.append(
            Drafted(token, parent, path, string.source, bin_number, string.at[2] if string.at else string.length)
        )
        string = string.descend(context, token)


def _strings(context: Context) -> list[_String]:
    """Every match of every source, the longest of each first."""
    strings = [_String(source, n, at, None) for source in (REQUEST, GROUP) for at, n in shorter(*context.match[source])]
    lengths = range(len(context.corpus_at) - 1 if context.corpus else 0, 0, -1)
    return strings + [_String(CORPUS, length, None, (*context.corpus_at[length], length)) for length in lengths]


def _draft_suffix(model: Model, context: Context, k: int, floor: int, tree: bool) -> Record:
    """GenerateCandidateTree: every match of every source is tried, the best score wins, the first on a tie."""
    record, strings = Record(floor), _strings(context)
    tried = [(*_expand(model, context, each, min(k, ALPHA * each.length), tree), each) for each in strings]
    _, best, start = max(tried, key=lambda trial: trial[0], default=(0, [], None))
    past = best and best[0].source == GROUP and context.past
    past = past and context.followed_in_past(start.state, best[0].token)
    for made in best:
        record.tokens.append(made._replace(source=HISTORY) if past else made)
        if record.cut:
            break
    return record
