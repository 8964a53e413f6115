# SPDX-License-Identifier: Apache-2.0
"""Tests of drafts that the device completes, and of their confidences. The table is compared with dictionaries, the
kernels with their reference in numpy."""

import os
import random
import subprocess
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from sam_core.budget import Calibration
from sam_core.device_drafts import (
    CHECK,
    COMMON,
    FILLER,
    MAX_CONFIRMED,
    MAX_NGRAM,
    MAX_TOKEN,
    MODEL,
    NGRAMS,
    NO_GROUP,
    NO_TOKEN,
    NUM_BINS,
    NUM_CLASSES,
    PAGE,
    SCALE,
    TEXTS,
    UNIT,
    NgramTable,
    class_priors,
    factors,
    pack,
)
from sam_core.kernels import Drafter, ModelDrafts

from sam_lab.completion import Completed, draft

K = 3
VOCABULARY = 200


class Oracle:
    """A table of lists and dictionaries, in which texts share pages, and n-grams share slots, as in NgramTable."""

    def __init__(self, num_slots, num_pages=1, vocab_size=VOCABULARY, of_groups=True, of_all=True):
        self.num_slots, self.vocab_size, self.of_groups, self.of_all = num_slots, vocab_size, of_groups, of_all
        self.pages = [[0] * (PAGE + 1) for _ in range(num_pages)]
        self.num_opened, self.page_of = 0, {}
        self.texts, self.slots, self.counts = defaultdict(list), {}, Counter()
        self.frequent = 0
        columns = factors().T.tolist()
        self.columns = {n: (columns[at], columns[len(NGRAMS) + at]) for at, n in enumerate(NGRAMS)}

    def hashes(self, group, ngram):
        n = len(ngram)
        slot, check = (
            group * column[0] + sum(factor * token for factor, token in zip(column[-n:], ngram, strict=True))
            for column in self.columns[n]
        )
        assert max(slot, check) < 1 << 63
        return slot % self.num_slots, check & CHECK

    def append(self, text, group, tokens):
        known = self.texts[text]
        for token in tokens:
            at = len(known) % PAGE
            if at == 0 or self.num_opened - self.page_of[text] > len(self.pages):
                self.page_of[text] = self.num_opened
                self.num_opened += 1
            page = self.page_of[text] % len(self.pages)
            follower = token if token < self.vocab_size else NO_TOKEN
            self.pages[page][at : at + 2] = follower, NO_TOKEN
            for number in [group] * self.of_groups + [COMMON] * self.of_all:
                for n in (n for n in NGRAMS if n <= len(known)):
                    self.follow(*self.hashes(number, known[-n:]), (page, at), follower)
            known.append(token)
            if follower != NO_TOKEN and self.of_all:
                self.counts[token] += 1
                self.frequent = max(self.frequent, token, key=self.counts.__getitem__)

    def follow(self, slot, check, place, follower):
        known, (page, at), confirmed = self.slots.get(slot, (None, (0, 0), 0))
        if known != check:
            confirmed = 0
        elif self.pages[page][at] == follower:
            confirmed = min(confirmed + 1, MAX_CONFIRMED)
        elif confirmed:
            place, confirmed = (page, at), confirmed - 1
        self.slots[slot] = check, place, confirmed

    def memory(self):
        """Return the contents in the layout of NgramTable.memory."""
        slots = np.zeros((self.num_slots, 2), int)
        for slot, (check, (page, at), confirmed) in self.slots.items():
            slots[slot] = TEXTS + page * (PAGE + 1) + at + UNIT * confirmed, check
        return np.concatenate([[self.frequent, NO_TOKEN], *self.pages, slots.ravel()])


def rows_of(texts):
    rows = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows


class Device:
    """Completes drafts of k tokens for up to 8 requests, and asserts that the kernel and its reference agree."""

    def __init__(self, table, k=K, width=None, seed=0):
        self.table, self.k, self.width, self.rng = table, k, width or k + 1, np.random.default_rng(seed)
        self.drafter = Drafter(table, 8, k, self.width, torch.device("cpu"), adaptive=True)

    def garbage(self, *shape):
        return self.rng.integers(0, MAX_TOKEN, shape)

    def draft(self, groups, texts, chains, sampled, probabilities=None, model=None, planned=None):
        """Return the drafts. The host knows `texts`; the device also knows `sampled`. probabilities: of chains.
        model: ModelDrafts. planned: number of tokens by which drafts of the model and of texts are compared."""
        batch, k, width = len(texts), self.k, self.width
        states = torch.from_numpy(self.rng.permutation(8)[:batch])
        longest = max(len(text) + len(new) for text, new in zip(texts, sampled, strict=True))
        rows, lengths = self.garbage(8, longest).astype(np.int32), self.garbage(8).astype(np.int32)
        scaled = np.ones((batch, width + k)) if probabilities is None else probabilities
        padded = pack(self.garbage(batch, width + k), scaled)
        unknown, tails = self.garbage(batch, width), np.zeros((batch, MAX_NGRAM), np.int64)
        for i, state in enumerate(states.tolist()):
            text = [*texts[i], *sampled[i]]
            rows[state, : len(text)], lengths[state] = text, len(text) - (not sampled[i] and self.rng.integers(2))
            unknown[i, : len(sampled[i])] = sampled[i]
            padded[i, : len(chains[i])] = pack(np.array(chains[i], np.int64), scaled[i, : len(chains[i])])
            tails[i] = rows[state, np.maximum(np.arange(-MAX_NGRAM, 0) + len(texts[i]), 0)]
        known, chained, count = (np.array([*map(len, each)]) for each in (texts, chains, sampled))
        requests = np.concatenate([np.stack([known, groups, chained], 1), padded], 1)
        drafts = torch.from_numpy(self.garbage(batch + 8, k))
        confidences, behind = torch.full((batch + 8, k), 7.0), drafts[batch:].tolist()
        classes = self.drafter.classes.clone()
        changed, values = self.table.changes()
        here = torch.from_numpy(rows), torch.from_numpy(lengths)
        self.drafter.draft(requests, changed, values, states, *here, drafts, confidences, model, planned)
        assert (self.drafter.memory.numpy() == self.table.memory).all()
        assert drafts[batch:].tolist() == behind and (confidences[batch:] == 7).all()
        arguments = padded, chained, tails, np.array(groups), unknown, count
        expected = self.completed(arguments)
        likely = self.likely(expected)
        if model:
            expected, likely = self.joined(expected, likely, model, planned, states, arguments)
        assert drafts[:batch].tolist() == expected.tokens.tolist()
        classes[states] = expected.classes.int()
        assert (self.drafter.classes == classes).all()
        assert torch.allclose(confidences[:batch], likely, rtol=1e-6, atol=0)
        self.states, self.classes, self.confidences = states, expected.classes, confidences[:batch]
        return [row[:n] for row, n in zip(expected.tokens.tolist(), expected.lengths.tolist(), strict=True)]

    def completed(self, arguments):
        """Return the drafts of the reference as tensors."""
        return Completed(*map(torch.from_numpy, draft(self.table.memory, self.table.num_slots, *arguments, self.k)))

    def likely(self, drafts):
        rate, prior = self.rates()[drafts.classes], self.drafter.prior[drafts.classes]
        fine = rate * (drafts.probabilities / SCALE) / prior.clamp(min=1e-6)
        return torch.where(drafts.classes < NUM_BINS, fine, rate).clamp(0, 1)

    def joined(self, of_texts, likely, model, planned, states, arguments):
        """Return the better of two drafts: the draft of the texts, or the model's draft, which the texts continue."""
        padded, chained, tails, groups, unknown, count = arguments
        m = model.tokens.size(1)
        agrees = (of_texts.tokens[:, :m] == model.tokens).all(1) & (of_texts.lengths >= m)
        begun = torch.where(agrees, of_texts.lengths, m)
        chains = padded.copy()
        for row, (n, length) in enumerate(zip(count, begun.tolist(), strict=True)):
            tokens = of_texts.tokens[row, :length] if agrees[row] else model.tokens[row]
            chains[row, : n + length] = pack(np.concatenate([unknown[row, :n], tokens]), np.ones(n + length))
        given = (chains, count + begun.numpy(), tails, groups, unknown, count)
        of_model = self.completed(given)
        is_begun = torch.arange(self.k) < begun[:, None]
        of_model.classes[is_begun] = of_texts.classes[is_begun]
        of_model.probabilities[is_begun] = of_texts.probabilities[is_begun]
        of_model.classes[:, :m] = MODEL + torch.arange(m)
        likely_of_model = self.likely(of_model)
        if model.confidences is not None:
            likely_of_model[:, :m] = model.confidences
        expected, expected_of_model = (each[:, :planned].cumprod(1).sum(1) for each in (likely, likely_of_model))
        is_better = expected_of_model > expected
        assert self.drafter.num_of_model[states].tolist() == torch.where(is_better, m, 0).tolist()
        full = torch.cat(
            [likely_of_model[:, :m], self.rates()[MODEL + m : MODEL + model.longest].expand(len(states), -1)], 1
        )
        one = expected_of_model if m == 1 else likely_of_model[:, 0]
        full = expected_of_model if m == model.longest else full[:, :planned].cumprod(1).sum(1)
        worth = torch.stack([torch.maximum(expected, one), torch.maximum(expected, full)], 1)
        assert torch.allclose(self.drafter.worth[states], worth, rtol=1e-5, atol=0)
        self.agreed, self.better = agrees, is_better
        tokens, classes, likely = (
            torch.where(is_better[:, None], a, b)
            for a, b in (
                (of_model.tokens, of_texts.tokens),
                (of_model.classes, of_texts.classes),
                (likely_of_model, likely),
            )
        )
        lengths = torch.where(is_better, of_model.lengths, of_texts.lengths)
        return of_texts._replace(tokens=tokens, classes=classes, lengths=lengths), likely

    def rates(self):
        weight = Calibration.PRIOR_SAMPLES
        return (self.drafter.counts[1] + weight * self.drafter.prior) / (self.drafter.counts[0] + weight)


@pytest.mark.parametrize("seed", range(40))
def test_the_memory_is_that_of_dictionaries(seed):
    """Random texts in groups are fed in random portions into few pages. Some tokens are outside the vocabulary."""
    rng = random.Random(seed)
    num_pages, num_slots = rng.choice([1, 2, 3, 8]), 1 << rng.choice([2, 6, 10, 16])
    size, vocab_size = rng.choice([2, 5, 40, MAX_TOKEN]), rng.choice([1, 4, 39, MAX_TOKEN])
    sources = {"of_groups": rng.random() < 0.8, "of_all": rng.random() < 0.8}
    table = NgramTable(num_pages * PAGE, num_slots, vocab_size, **sources)
    oracle, copy = Oracle(num_slots, num_pages, vocab_size, **sources), table.memory.copy()
    groups, texts, pages = [rng.randrange(COMMON + 1, MAX_TOKEN) for _ in range(3)] * 2, [[] for _ in range(6)], None
    for _ in range(20):
        new = [rng.choices(range(size), k=rng.randrange(rng.choice([1, 4, 4, 4, 2 * PAGE]))) for _ in texts]
        starts = [*map(len, texts)]
        for text, tokens in enumerate(new):
            texts[text] += tokens
            oracle.append(text, groups[text], tokens)
        pages = add(table, texts, groups, pages, starts)
        assert (table.memory == oracle.memory()).all()
        if rng.random() < 0.7:
            cells, values = table.changes()
            assert len(set(cells.tolist())) == len(cells)
            copy[cells] = values
            assert (copy == table.memory).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 3, 8, 15])
def test_drafts_are_those_of_torch_s_operators(k, seed):
    """Random texts in groups are fed in random portions. Chains agree with the sampled tokens, differ, or are empty."""
    rng = random.Random(seed)
    size, num_slots, num_pages = rng.choice([2, 5, 40, 150]), rng.choice([1 << 10, 1 << 16]), rng.choice([4, 6])
    vocab_size = max(2, size - 1)
    table = NgramTable(num_pages * PAGE, num_slots, vocab_size)
    device, pages = Device(table, k, rng.choice([k + 1, 2 * (k + 1), 7 + k]), seed), np.zeros(6, np.int64)
    device.drafter.counts.copy_(torch.rand(2, NUM_CLASSES).sort(0, descending=True).values * 50)
    groups, texts = [rng.randrange(COMMON + 1, MAX_TOKEN) for _ in range(3)] * 2, [[] for _ in range(6)]
    looked_up = held = 0
    for _ in range(15):
        new = [[rng.randrange(size) for _ in range(rng.randrange(12))] for _ in texts]
        starts = [*map(len, texts)]
        for text, tokens in zip(texts, new, strict=True):
            text += tokens
        add(table, texts, groups, pages, starts)
        sampled = [[rng.randrange(size) for _ in range(rng.randrange(k + 2))] for _ in texts]
        chains = [[rng.randrange(size) for _ in range(rng.randrange(2 * k + 2))] for _ in texts]
        for chain, tokens in zip(chains, sampled, strict=True):
            if rng.random() < 0.5:
                chain[: len(tokens)] = tokens[: len(chain)]
        enough = [i for i in range(6) if len(texts[i]) >= MAX_NGRAM and rng.random() < 0.9]
        if not enough:
            continue
        probabilities = device.rng.random((len(enough), device.width + k))
        chosen = ([values[i] for i in enough] for values in (groups, texts, chains, sampled))
        drafts = device.draft(*chosen, probabilities)
        held += sum(chains[i][: len(sampled[i])] == sampled[i] for i in enough)
        looked_up += sum(draft != [table.memory[0]] for draft in drafts)
    assert looked_up > 30 and held > 15


@pytest.mark.parametrize("estimated", [True, False])
@pytest.mark.parametrize(("k", "m", "longest", "planned"), [(3, 3, 3, 3), (8, 2, 2, 3), (15, 1, 3, 15), (15, 3, 3, 7)])
def test_the_draft_from_which_more_is_expected_is_chosen(k, m, longest, planned, estimated):
    """The drafts of the model agree with the whole chain, with its beginning, or not at all."""
    rng = random.Random(k + m)
    table, device, groups = NgramTable(4 * PAGE, 1 << 10, 5), None, [2, 3, 4]
    device, texts = Device(table, k, 2 * (k + 1), k), [[rng.randrange(5) for _ in range(40)] for _ in range(3)]
    device.drafter.counts.copy_(torch.from_numpy(np.sort(device.rng.random((2, NUM_CLASSES)), 0)[::-1] * 50))
    add(table, texts, groups)
    agreed = better = 0
    for _ in range(40):
        sampled = [[rng.randrange(5) for _ in range(rng.randrange(3))] for _ in texts]
        rest = [[rng.randrange(5) for _ in range(rng.randrange(k + 3))] for _ in texts]
        tokens = torch.from_numpy(device.rng.integers(0, 5, (3, m)))
        for row, chain in zip(tokens, rest, strict=True):
            if rng.random() < 0.6:
                row[: len(chain)] = torch.tensor(chain[:m])
        wide = torch.full((5, k), 7.0)
        wide[:3, :m] = torch.from_numpy(device.rng.random((3, m)))
        model = ModelDrafts(tokens, wide[:3, :m] if estimated else None, longest)
        probabilities = device.rng.random((3, device.width + k)) ** rng.choice([0.2, 5])
        chains = [new + more for new, more in zip(sampled, rest, strict=True)]
        device.draft(groups, texts, chains, sampled, probabilities, model, planned)
        agreed += (device.agreed & device.better).sum()
        better += device.better.sum()
    assert 5 < agreed < better < 110


def add(table, texts, groups, pages=None, starts=None):
    """Append the tokens of texts from `starts` on, and return the pages."""
    ends = np.array([*map(len, texts)], np.int32)
    starts = np.zeros_like(ends) if starts is None else np.array(starts, np.int32)
    pages = np.zeros(len(texts), np.int64) if pages is None else pages
    table.append(pages, np.array(groups, np.int32), rows_of(texts), starts, ends)
    return pages


def table_of(texts, groups, num_slots=1 << 12, **more):
    table = NgramTable(2 * PAGE * len(texts), num_slots, MAX_TOKEN, **more)
    add(table, texts, groups)
    return table


def test_hashes_of_the_largest_numbers_do_not_overflow():
    token = MAX_TOKEN - 1
    device = Device(table_of([[token] * 8], [MAX_TOKEN - 1]))
    assert device.draft([token], [[token] * 5], [[]], [[token]]) == [[token, token]]
    Oracle(1).hashes(token, [token] * MAX_NGRAM)


def test_of_equal_matches_the_first_gives_the_class():
    """A shorter match in the group, and a longer match in all texts that is confirmed twice, are equally good."""
    table = NgramTable(1, 1 << 12, MAX_TOKEN)
    add(table, [[5]], [10])
    for group, ngram, confirmed in ((10, [2], 0), (COMMON, [1, 2], 2)):
        slot, check = Oracle(table.num_slots).hashes(group, ngram)
        table.memory[table.base + 2 * slot :][:2] = TEXTS + UNIT * confirmed, check
    device = Device(table)
    assert device.draft([10], [[1, 2]], [[]], [[]]) == [[5, 5]]
    assert device.classes[0].tolist() == [NUM_BINS, FILLER, FILLER]


@pytest.mark.parametrize(("of_groups", "of_all"), [(True, False), (False, True)])
def test_drafts_come_from_the_sources_that_are_asked_for(of_groups, of_all):
    device = Device(table_of([[9, 9, 1, 2, 3], [9, 1, 2, 4]], [10, 11], of_groups=of_groups, of_all=of_all), k=1)
    drafts = device.draft([10, 11, 12, NO_GROUP], [[0] * 4 + [1]] * 4, [[]] * 4, [[2]] * 4)
    assert drafts == ([[3], [4], [0], [0]] if of_groups else [[4], [4], [4], [9]])
    assert device.draft([10], [[0] * 5], [[]], [[77]]) == [[9 if of_all else 0]]


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(ValueError, match="536870913 tokens are more than a table holds: 536870912"):
        NgramTable((1 << 29) + 1, 1 << 4, 10)


def test_rates_become_the_share_that_was_accepted():
    """Only tokens up to the first refused one count; later tokens and tokens that were not verified do not."""
    rng, rates = random.Random(0), {NUM_BINS: 0.9, NUM_BINS + 7: 0.2, 23: 0.5}
    device = Device(NgramTable(1, 1 << 4, 10), k=3)
    states = torch.tensor([5, 2, 0])
    for _ in range(800):
        classes = [[rng.choice([*rates]) for _ in range(3)] for _ in states]
        device.drafter.classes[states] = torch.tensor(classes, dtype=torch.int32)
        sampled, rejected = [], []
        for row in classes:
            verified = rng.randrange(4)
            accepted = next((i for i in range(verified) if rng.random() > rates[row[i]]), verified)
            sampled.append(accepted + 1)
            rejected.append(verified - accepted)
        device.drafter.learn(states, *torch.tensor([sampled, rejected], dtype=torch.int32))
    assert device.rates()[[*rates]].tolist() == pytest.approx([*rates.values()], abs=0.05)


def test_what_is_learned_of_many_requests_is_the_sum_of_each():
    rng, k = np.random.default_rng(0), 5
    drafter = Drafter(NgramTable(1, 1 << 4, 10), 300, k, k + 1, torch.device("cpu"), adaptive=True)
    expected = np.zeros((2, NUM_CLASSES))
    for batch in (1, 64, 65, 300):
        drafter.classes.copy_(torch.from_numpy(rng.integers(0, NUM_CLASSES, (300, k))))
        states, accepted = rng.permutation(300)[:batch], rng.integers(-1, k + 1, batch)
        rejected = np.where(accepted >= 0, rng.integers(0, k + 1 - accepted.clip(0)), 0)
        expected *= Calibration.DECAY
        for state, n, refused in zip(states, accepted.clip(0), rejected, strict=True):
            for i, each in enumerate(drafter.classes[state].tolist()[: n + (refused > 0)]):
                expected[:, each] += 1, i < n
        drafter.learn(*map(torch.from_numpy, (states, (accepted + 1).astype(np.int32), rejected.astype(np.int32))))
        assert drafter.counts.numpy() == pytest.approx(expected, rel=1e-5)


def test_every_class_but_fillers_has_a_prior():
    priors = class_priors()
    assert (priors > 0).tolist() == [number != FILLER for number in range(NUM_CLASSES)] and (priors <= 1).all()


TARGETS = """
import sys
import torch, triton
from sam_core import kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

number = {"num_requests", "num_slots", "base", "texts_stride"}
number |= {"model_tokens_stride", "model_confidences_stride", "num_model_tokens", "num_planned"}
types = dict.fromkeys(("requests", "states", "constants", "drafts", "model_tokens"), "i64")
types |= dict.fromkeys(("counts", "rates", "confidences", "model_confidences", "worth"), "fp32")
alone, joined = dict(LONGEST=0, ESTIMATED=False), dict(LONGEST=3, ESTIMATED=True)
for kernel, constants, warps in (
    (kernels._draft, dict(K=3, W=8, SAMPLED=8, COLUMNS=16, LOOKED_UP=16, ADAPTIVE=False, **alone), 1),
    (kernels._draft, dict(K=15, W=32, SAMPLED=32, COLUMNS=32, LOOKED_UP=16, ADAPTIVE=True, **alone), 1),
    (kernels._draft, dict(K=15, W=32, SAMPLED=32, COLUMNS=32, LOOKED_UP=16, ADAPTIVE=True, **joined), 1),
    (kernels._learn, dict(K=15, COLUMNS=16, REQUESTS=64, COUNTS=256), 4),
):
    signature = {
        name: "constexpr" if name in constants else "i32" if name in number
        else "*" + types.get(name.removesuffix("_ptr"), "i32")
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(kernel.__name__, len(made.asm["cubin"]) > 0)
"""


def test_kernels_compile_for_a_gpu(tmp_path):
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    del environment["TRITON_INTERPRET"]
    printed = subprocess.run([sys.executable, "-c", TARGETS], env=environment, capture_output=True, text=True)
    assert printed.stdout.split("\n") == [*["_draft True"] * 3, "_learn True", ""], printed.stderr[-2000:]
