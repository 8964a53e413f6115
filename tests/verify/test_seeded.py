# SPDX-License-Identifier: Apache-2.0
"""Tests of mode seeded. The noise depends only on (key, position, token), so drafts do not change the text."""

import math

import pytest
import torch
from batches import batches, keys_of, seeded_sample
from hypothesis import given, settings
from sam_core.seeds import GAMMA, request_key
from scipy import stats

from sam_core import noise, verify

MASK = (1 << 64) - 1


def mix(z):
    for _ in range(2):
        z = (z ^ z >> 32) * noise.MIXER & MASK
    return z


def stream(key, position, length):
    """Return the random words of a row, computed with Python integers."""
    state = mix(key + position * noise.STRIDE & MASK)
    return [mix(state + i * GAMMA & MASK) >> 32 & 2**31 - 1 for i in range(1, length + 1)]


def words_of(keys, positions, length):
    starts = noise._start(*(torch.as_tensor(each).long().numpy() for each in (keys, positions)))
    return noise._words(torch.from_numpy(starts), length)


def test_words_are_those_of_plain_integers():
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567]
    positions = [0, 1, 2, 4096, 2**31 - 1, 77]
    words = words_of(keys, positions, 300)
    assert words.tolist() == [stream(key, position, 300) for key, position in zip(keys, positions, strict=True)]


def test_every_bit_of_a_seed_counts():
    seeds = [0, *(1 << bit for bit in range(64)), -1, -2, 2**64 - 2, -(2**63)]
    keys = [request_key(seed) for seed in seeds]
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert request_key(-2) == request_key(2**64 - 2)
    assert request_key(-(2**63)) == request_key(2**63)
    assert len(set(keys)) == len(keys) - 2
    words = words_of(torch.tensor(keys), torch.zeros(len(keys), dtype=torch.int32), 4)
    assert len({tuple(row) for row in words.tolist()}) == len(keys) - 2


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_that_is_too_long(seed):
    with pytest.raises(ValueError, match=f"seed {seed} has more than 64 bits: give a seed"):
        request_key(seed)


def test_exponentials():
    """Draws are finite, and small draws are accurate. The largest word gives the largest draw."""
    words = torch.tensor([0, 1, 1000, 2**24, 2**30, 2**31 - 64, 2**31 - 1], dtype=torch.int32)
    drawn = -noise._negated_exponentials(words)
    assert drawn.dtype == torch.float32
    wanted = [-math.log1p(-(word + 0.5) / 2**31) for word in words.tolist()]
    assert drawn[:-2].tolist() == pytest.approx(wanted[:-2], rel=5e-7)
    assert drawn[-2:].tolist() == [pytest.approx(24 * math.log(2), rel=1e-3)] * 2


def independent(a, b, bits=4):
    """Return a p-value: the top bits of two series of words, and the bottom bits, form all pairs equally often."""
    pairs = [((a >> shift) % (1 << bits) << bits) + (b >> shift) % (1 << bits) for shift in (31 - bits, 0)]
    counts = [torch.bincount(each.flatten(), minlength=1 << 2 * bits).numpy() for each in pairs]
    return min(stats.chisquare(each).pvalue for each in counts)


def test_words_are_uniform_and_independent():
    """Compares words of neighbouring seeds, positions and tokens, and of tokens that are a block apart."""
    seeds, positions, length = 24, 44, 1024
    keys = keys_of(range(-4, seeds - 4)).repeat_interleave(positions)
    words = words_of(keys, torch.arange(positions).repeat(seeds), length).view(seeds, positions, length)
    ones = torch.stack([(words >> bit) % 2 for bit in range(31)]).sum((1, 2, 3))
    assert words[1:].numel() > 1_000_000
    assert ((ones - words.numel() / 2).abs() < 4.5 * math.sqrt(words.numel() / 4)).all()
    assert stats.chisquare(torch.bincount(words.flatten() >> 21, minlength=1024).numpy()).pvalue > 1e-4
    pairs = {
        "seeds": (words[1:], words[:-1]),
        "seeds, 2 apart": (words[2:], words[:-2]),
        "positions": (words[:, 1:], words[:, :-1]),
        "tokens": (words[:, :, 1:], words[:, :, :-1]),
        "tokens, a block apart": (words[:, :, noise.BLOCK :], words[:, :, : -noise.BLOCK]),
        "seed up, position down": (words[1:, :-1], words[:-1, 1:]),
        "position up, token down": (words[:, 1:, :-1], words[:, :-1, 1:]),
    }
    found = {name: independent(*pair) for name, pair in pairs.items()}
    assert min(found.values()) > 1e-4, found
    rows = words.view(-1, length).double()
    assert (torch.corrcoef(rows[:400]) - torch.eye(400)).abs().max() < 6 / math.sqrt(length)


@pytest.mark.parametrize("stride", [1, GAMMA, noise.STRIDE, 1 << 32])
def test_seeds_in_any_progression(stride):
    """A run may choose the seeds of its requests with any stride."""
    seeds = [(i * stride) & MASK for i in range(1024)]
    words = words_of(keys_of(seeds), torch.full((1024,), 5), 256)
    again = words_of(keys_of(seeds), torch.full((1024,), 6), 256)
    for neighbour, other in ((words[1:], words[:-1]), (again[:-1], words[1:]), (again[1:], words[:-1])):
        assert independent(neighbour, other) > 1e-4
    assert len(torch.unique(words)) > 0.9998 * words.numel()


@pytest.mark.parametrize("vocabulary", [7, 1024])
def test_a_sample_depends_on_its_own_row_alone(vocabulary):
    """A permuted batch and batches of one row give the same samples."""
    torch.manual_seed(0)
    probs = (2 * torch.randn(64, vocabulary)).softmax(1)
    keys, positions = keys_of(range(64)), torch.randint(0, 4096, (64,), dtype=torch.int32)
    whole = seeded_sample(probs, keys, positions)
    order = torch.randperm(64)
    assert torch.equal(seeded_sample(probs[order], keys[order], positions[order]), whole[order])
    alone = [seeded_sample(probs[i : i + 1], keys[i : i + 1], positions[i : i + 1]) for i in range(64)]
    assert torch.equal(torch.cat(alone), whole)
    assert whole.dtype == torch.int64
    assert len(set(whole.tolist())) > 3


@settings(max_examples=60)
@given(batches())
def test_verify_against_a_loop(batch):
    """The loop samples each row by its key and position, and stops at the first sample that differs from the draft."""
    keys, positions = keys_of(range(len(batch.counts))), 10 * torch.arange(len(batch.counts), dtype=torch.int32)
    wanted, row, draft = [], 0, 0
    for request, count in enumerate(batch.counts):
        tokens = []
        for column in range(count + 1):
            probs = batch.probs[row + column][None]
            tokens.append(seeded_sample(probs, keys[request, None], positions[request, None] + column).item())
            if column < count and tokens[-1] != batch.drafts[draft + column]:
                break
        row, draft = row + count + 1, draft + count
        wanted.append(tokens + [-1] * (batch.k + 1 - len(tokens)))
    sampled = noise.Noise(keys, positions, batch.counts, "cpu").sample(batch.probs)
    assert verify.keep_equal(sampled, batch.drafts, batch.counts).tolist() == wanted


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("_words", lambda words: words ^ 1, "64-bit integers on cpu do not wrap .* use verify: rejection"),
        ("_negated_exponentials", lambda e: (1 - torch.expm1(-e) - 1).log1p(), "log1p on cpu differs from that of"),
    ],
)
def test_a_device_that_computes_otherwise_is_refused(monkeypatch, name, wrong, sentence):
    noise.check_device("cpu")
    right, calls = getattr(noise, name), []

    def once_wrong(*arguments):
        calls.append(arguments)
        return wrong(right(*arguments)) if len(calls) == 1 else right(*arguments)

    monkeypatch.setattr(noise, name, once_wrong)
    with pytest.raises(RuntimeError, match=sentence):
        noise.check_device("cpu")
