# SPDX-License-Identifier: Apache-2.0
"""Corpora: the C reader and its plain-Python twin against brute force, the builder, and files that are refused."""

import ctypes
import gzip
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import zlib
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from c_programs import CC, CSRC
from hypothesis import given, settings
from sam_core.corpus import END, build_corpus, describe, verify
from sam_core.tokenizer import fingerprint

from sam_core import corpus

A, B, C, D = range(4)
MAX_MATCH, PROBES = 32, 16

u32 = ctypes.c_uint32


class Mapped(ctypes.Structure):
    """`corpus` of corpus.h."""

    _fields_ = [("pointers", ctypes.c_void_p * 8)]
    _fields_ += [(name, u32) for name in ("size", "count", "buckets", "shift", "texts", "largest")]
    _fields_ += [("tokenizer", ctypes.c_uint64), ("file", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class Match(ctypes.Structure):
    _fields_ = [("low", u32), ("high", u32), ("length", u32)]


class Context(ctypes.Structure):
    _fields_ = [("length", u32), ("at", u32 * (2 * (MAX_MATCH + 1)))]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    shared = tmp_path_factory.mktemp("corpus") / "corpus.so"
    subprocess.run([CC, "-std=c11", "-O3", "-shared", "-fPIC", str(CSRC / "corpus.c"), "-o", str(shared)], check=True)
    return ctypes.CDLL(str(shared), use_errno=True)


class InC:
    """corpus.c with the methods of corpus.Corpus."""

    def __init__(self, library, path):
        self.library, self.c, reason = library, Mapped(), ctypes.c_char_p()
        status = library.corpus_open(ctypes.byref(self.c), os.fsencode(path), ctypes.byref(reason))
        if status == 1:
            raise OSError(ctypes.get_errno(), "")
        if status == 2:
            raise ValueError(f"{path} is {reason.value.decode()}")

    def close(self):
        self.library.corpus_close(ctypes.byref(self.c))

    def start(self):
        context = Context()
        self.library.corpus_start(ctypes.byref(self.c), ctypes.byref(context))
        return self._list(context)

    def _list(self, context):
        at = list(context.at)
        return list(zip(at[0::2], at[1::2], strict=True))[: context.length + 1]

    def advance(self, context, token):
        given = Context(len(context) - 1)
        given.at[: 2 * len(context)] = [bound for interval in context for bound in interval]
        self.library.corpus_advance(ctypes.byref(self.c), ctypes.byref(given), ctypes.c_int32(token))
        return self._list(given)

    def extend(self, match, token):
        given = Match(*match)
        call = self.library.corpus_extend
        call.restype = ctypes.c_bool
        done = call(ctypes.byref(self.c), ctypes.byref(given), ctypes.c_int32(token))
        after = (given.low, given.high, given.length)
        assert done or after == match
        return after if done else None

    def first(self, match):
        call = self.library.corpus_first
        call.restype = u32
        return call(ctypes.byref(self.c), ctypes.byref(Match(*match)))

    def next(self, match, most):
        tokens, counts = (ctypes.c_int32 * (most + 1))(*[-7] * (most + 1)), (u32 * (most + 1))(*[7] * (most + 1))
        found = self.library.corpus_next(ctypes.byref(self.c), ctypes.byref(Match(*match)), u32(most), tokens, counts)
        assert tokens[most] == -7 and counts[most] == 7  # never writes more than asked for
        return list(zip(tokens[:found], counts[:found], strict=True))


@pytest.fixture(params=["c", "twin"])
def reader(request, library):
    """Opens a corpus file; closes it at the end of the test."""
    opened = []

    def open_corpus(path):
        opened.append(InC(library, path) if request.param == "c" else corpus.Corpus(path))
        return opened[-1]

    yield open_corpus
    if request.param == "c":
        for one in opened:
            one.close()


@pytest.fixture
def built(tmp_path):
    """Writes a corpus of texts given as lists; returns its path."""

    def build(texts):
        path = tmp_path / "texts.corpus"
        build_corpus(texts, path)
        return path

    return build


class Brute:
    """What a reader must say about the string w, by looking at every place of the texts."""

    def __init__(self, texts):
        self.stream = [token for text in texts if text for token in [*text, END]]

    def ends(self, w):
        """Positions of the tokens that follow an occurrence of w."""
        n = len(w)
        places = (p for p in range(len(self.stream) - n) if self.stream[p : p + n] == w)
        return [p + n for p in places if n or self.stream[p] != END]

    def check(self, reader, context, history, most):
        """A reader's context after `history`, at each length."""
        assert context[0] == reader.start()[0]
        for length, (low, high) in enumerate(context):
            w = history[len(history) - length :]
            ends = self.ends(w)
            assert high - low == len(ends) > 0
            match = (low, high, length)
            assert reader.first(match) == min(ends)
            following = Counter(self.stream[p] for p in ends)
            del following[END]
            ranked = sorted(following.items(), key=lambda item: (-item[1], item[0]))
            proposed = reader.next(match, most)
            assert len(proposed) <= most
            assert proposed == sorted(proposed, key=lambda item: (-item[1], item[0]))
            assert all(following[token] == count for token, count in proposed)
            sure = [item for item in ranked if item[1] * 16 >= len(ends) or len(ends) <= 16]
            # what is surely found fills the first places, unless others are as frequent
            assert [count for _, count in proposed[: len(sure)]] == [count for _, count in sure[:most]]
            if len(ends) <= PROBES:
                assert proposed == ranked[:most]
            elif most >= PROBES:
                assert set(sure) <= set(proposed)
            for token in [A, B, C, D, END]:
                longer = reader.extend(match, token)
                count = following[token]
                assert (longer is None) == (count == 0)
                if longer:
                    assert (longer[1] - longer[0], longer[2]) == (count, length + 1)
                    assert low <= longer[0] < longer[1] <= high
        longer = history[len(history) - len(context) :]
        assert len(longer) < len(context) or len(context) > MAX_MATCH or not self.ends(longer)


TEXTS = st.lists(st.lists(st.integers(A, D), max_size=30) | st.lists(st.just(A), max_size=60), max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(), texts=TEXTS.filter(any), history=st.lists(st.integers(A, D), max_size=12), most=st.integers(0, 16)
)
def test_readers_agree_with_brute_force(data, library, tmp_path_factory, texts, history, most):
    path = tmp_path_factory.mktemp("brute") / "texts.corpus"
    build_corpus(texts, path)
    verify(path)
    brute = Brute(texts)
    in_c, twin = InC(library, path), corpus.Corpus(path)
    assert in_c.start() == twin.start()
    if data.draw(st.booleans(), "copies a text"):
        text = data.draw(st.sampled_from(texts), "text")
        history = history + text + history
    context = in_c.start()
    for fed, token in enumerate(history, 1):
        longer = in_c.advance(context, token)
        assert longer == twin.advance(context, token)
        context = longer
        if fed % 7 == 0 or fed == len(history):
            brute.check(in_c, context, history[:fed], most)
            brute.check(twin, context, history[:fed], most)
    in_c.close()


def test_c_and_twin_agree_on_large_intervals(library, tmp_path):
    random = np.random.default_rng(4)
    path = tmp_path / "large.corpus"
    texts = [random.zipf(1.3, 400) % 60 for _ in range(20)]
    build_corpus(texts, path)
    in_c, twin = InC(library, path), corpus.Corpus(path)
    context, asked = in_c.start(), 0
    for token in texts[0][:40].tolist() + random.integers(0, 60, 40).tolist():
        for length, (low, high) in enumerate(context):
            match = (low, high, length)
            assert in_c.next(match, 12) == twin.next(match, 12)
            assert in_c.first(match) == twin.first(match)
            asked += high - low > PROBES
        context = in_c.advance(context, token)
    assert asked > 100
    in_c.close()


def test_worked_example_of_the_header(built, reader):
    c = reader(built([[A, B, C, B, C], [B, A]]))
    context = c.start()
    for token in [A, B, C, B, C]:
        context = c.advance(context, token)
    assert context == [(0, 7), (5, 7), (3, 5), (6, 7), (4, 5), (1, 2)]
    assert c.first((3, 5, 2)) == 3
    assert c.next((3, 5, 2), 8) == [(B, 1)]
    assert c.extend((3, 5, 2), B) == (4, 5, 3)


def test_matches_do_not_cross_texts(built, reader):
    c = reader(built([[A, B], [C, D], [A, B]]))
    context = c.advance(c.advance(c.start(), A), B)
    assert [high - low for low, high in context] == [6, 2, 2]
    assert c.next((*context[2], 2), 8) == []
    assert c.extend((*context[2], 2), C) is None
    assert c.extend((*context[2], 2), END) is None
    assert len(c.advance(context, C)) == 2  # C alone, not B C
    assert c.advance(context, END) == c.start()


def test_texts_with_equal_beginnings(built, reader):
    c = reader(built([[A, A, B], [A, A], [A, A, B, C], [A]]))
    context = c.advance(c.advance(c.start(), A), A)
    assert [high - low for low, high in context] == [10, 7, 3]
    assert c.next((*context[2], 2), 8) == [(B, 2)]
    assert c.next((*context[1], 1), 8) == [(A, 3), (B, 2)]
    assert c.first((*context[2], 2)) == 2


def test_one_token(built, reader):
    path = built([[7]])
    assert describe(path)["tokens"] == 1
    c = reader(path)
    assert c.advance(c.start(), 7) == [(0, 1), (0, 1)]
    assert c.advance(c.start(), 6) == c.advance(c.start(), 8) == [(0, 1)]
    assert c.next((0, 1, 0), 4) == [(7, 1)]
    assert c.next((0, 1, 1), 4) == []
    assert c.first((0, 1, 1)) == 1


def test_a_match_has_at_most_32_tokens(built, reader):
    text = list(range(100))
    c = reader(built([text]))
    context = c.start()
    for token in text[:60]:
        context = c.advance(context, token)
    assert len(context) == MAX_MATCH + 1
    assert c.first((*context[32], 32)) == 60
    match = (*context[32], 32)
    for token in text[60:]:
        match = c.extend(match, token)
    assert match[2] == 72 and c.extend(match, 100) is None


def test_large_and_scattered_ids(built, reader):
    ids = [0, 1, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**30, 2**31 - 2, 2**31 - 1]
    path = built([ids, ids[::-1]])
    verify(path)
    c = reader(path)
    for before, token in zip(ids, ids[1:], strict=False):
        context = c.advance(c.advance(c.start(), before), token)
        assert [high - low for low, high in context] == [18, 2, 1]
    assert c.next((*c.advance(c.start(), 2**30)[1], 1), 4) == [(2**24, 1), (2**31 - 2, 1)]
    assert len(c.advance(c.start(), 2**30 + 1)) == 1


@pytest.mark.parametrize("size", [17, 100, 160, 161, 1600, 1613])
def test_each_sixteenth_is_found(library, built, size):
    """Wherever in the interval it lies; tokens behind A are the rest of the interval's column."""
    share = -(-size // 16)
    for place in range(0, size - share + 1, max(1, size // 12)):
        following = [10 + i for i in range(place)] + [5000] * share + [6000 + i for i in range(size - place - share)]
        c = InC(library, built([[A, token] for token in following]))
        context = c.advance(c.start(), A)
        assert c.next((*context[1], 1), 1) == [(5000, share)]
        c.close()


def test_ties_go_to_the_smaller_id(built, reader):
    c = reader(built([[A, token] for token in [9, 5, 7, 5, 7, 3]]))
    match = (*c.advance(c.start(), A)[1], 1)
    assert c.next(match, 8) == [(5, 2), (7, 2), (3, 1), (9, 1)]
    assert c.next(match, 1) == [(5, 2)]
    assert c.next(match, 3) == [(5, 2), (7, 2), (3, 1)]
    assert c.next(match, 0) == []


def test_first_occurrence_in_large_intervals(library, tmp_path):
    """Minima of up to three levels of blocks."""
    random = np.random.default_rng(1)
    path = tmp_path / "large.corpus"
    build_corpus([random.integers(0, 3, 300_000)], path)
    verify(path)
    c = InC(library, path)
    suffixes = corpus.Corpus(path).suffixes
    edges = [0, 1, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 262143, 262144, 262145, 299_999, 300_000]
    edges += random.integers(0, 300_000, 40).tolist()
    for low in edges:
        for high in edges:
            if low < high:
                assert c.first((low, high, 0)) == suffixes[low:high].min(), (low, high)
    c.close()


# ---- files that are refused


def refusal(reader, path):
    with pytest.raises(ValueError) as error:
        reader(path)
    return str(error.value)


def test_header_and_size_are_checked(built, reader, tmp_path):
    path = built([[A, B, C], [B, C]])
    sound = path.read_bytes()
    assert len(sound) % 64 == 0
    bad = tmp_path / "bad.corpus"
    for length in [0, 1, 7, 8, 55, 56, 63, 64, 65, len(sound) - 64, len(sound) - 1]:
        bad.write_bytes(sound[:length])
        message = refusal(reader, bad)
        assert message.startswith(f"{bad} is ")
        assert "no corpus" in message if length < 56 else "cut short" in message
    bad.write_bytes(sound + b"\0")
    assert "added to" in refusal(reader, bad)
    for at in range(56):
        bad.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        message = refusal(reader, bad)
        expected = "no corpus" if at < 8 else "version" if at < 12 else "damaged header"
        if at in range(12, 16):
            expected = "machines" if "machines" in message else "version"
        assert expected in message, at


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 0, "texts": 0, "largest": 0},
        {"size": 2, "texts": 2, "largest": 0},
        {"size": 2, "texts": 0, "largest": 0},
        {"size": 2, "texts": 1, "largest": 2**31, "shift": 31},
        {"size": 2, "texts": 1, "largest": 0, "shift": 32},
        {"size": 40, "texts": 1, "largest": 0},
    ],
)
def test_impossible_headers(reader, tmp_path, fields):
    path = tmp_path / "texts.corpus"
    sections = 1 + (fields["size"] > 0) + (fields["size"] > fields["texts"]) + 1
    numbers = [fields[name] for name in ("size", "texts", "largest")] + [fields.get("shift", 0), 0]
    header = struct.pack("<8sIIQQ5I", b"samcorp", 2, 0x01020304, 64 * sections, 0, *numbers)
    header += struct.pack("<I", zlib.crc32(header))
    path.write_bytes(header.ljust(64 * sections, b"\0"))
    assert "impossible" in refusal(reader, path)


def test_foreign_files(reader, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"#!/bin/sh\n" * 1000)
    assert "no corpus: name a file that build_corpus wrote" in refusal(reader, foreign)
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "missing")


def test_only_regular_files_are_mapped(library, tmp_path):
    for special in [tmp_path, "/dev/null"]:
        with pytest.raises(ValueError, match="no corpus"):
            InC(library, special)


def damaged(path, offset, value):
    """Overwrites 4 bytes and makes both checksums right again."""
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = struct.pack("<i", value)
    data[48:52] = struct.pack("<I", zlib.crc32(data[64:]))
    data[52:56] = struct.pack("<I", zlib.crc32(data[:52]))
    path.write_bytes(data)


def test_verify_notices_each_flipped_byte(built, tmp_path):
    path = built([[A, B, C] * 30, [B, C]])
    sound = path.read_bytes()
    assert verify(path) == describe(path)
    for at in range(64, len(sound), 7):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        describe(path)
        with pytest.raises(ValueError, match="damaged body"):
            verify(path)


def test_verify_notices_wrong_sections(tmp_path):
    path = tmp_path / "texts.corpus"
    texts = [[A, B, C, A, B] * 20, [B, C]]
    build_corpus(texts, path)
    sound = path.read_bytes()
    tokens = 64  # 104 of them
    suffixes = tokens + 448  # 102 of them
    starts = suffixes + 448  # 4 of them
    minima = starts + 64  # 2 of them
    assert len(sound) == minima + 64
    second, third = struct.unpack_from("<2i", sound, suffixes + 4)

    def notices(section, *changes):
        path.write_bytes(sound)
        for offset, value in changes:
            damaged(path, offset, value)
        describe(path)
        with pytest.raises(ValueError, match=section):
            verify(path)

    notices("token array", (tokens, C + 1))
    notices("token array", (tokens, -2))
    notices("token array", (tokens, END))
    notices("token array", (tokens + 4 * 103, A))
    notices("suffix array", (tokens, B))
    notices("suffix array", (suffixes + 4, third), (suffixes + 8, second))  # out of order
    notices("suffix array", (suffixes + 4, third))  # one twice
    notices("suffix array", (suffixes, 104))  # outside
    notices("suffix array", (suffixes, 103))  # an END
    notices("first-token", (starts + 4, 1))
    notices("first occurrences", (minima + 4, 50))
    path.write_bytes(sound)
    verify(path)


@pytest.mark.parametrize("stream", [[END, A, B, D, END], [A, END, B, END, D], [A, END, B, D, D]])
def test_verify_notices_misplaced_ends(built, stream):
    path = built([[A], [B, D]])
    verify(path)
    for place, token in enumerate(stream):
        damaged(path, 64 + 4 * place, token)
    with pytest.raises(ValueError, match="token array"):
        verify(path)


def test_verify_notices_an_empty_text(built):
    path = built([[A], [B], [C]])
    for place, token in enumerate([A, B, END, END, C, END]):
        damaged(path, 64 + 4 * place, token)
    with pytest.raises(ValueError, match="token array"):
        verify(path)


# ---- building


def test_the_file_is_the_same_everywhere(built):
    """A change of this number is a change of the format: raise the version."""
    path = built([[A, B, C, B, C], [B, A], [151_643], list(range(200))])
    assert zlib.crc32(path.read_bytes()) == 1290831845


def test_bytes_a_token(tmp_path):
    for size, most in [(10, 30), (1_000, 9.6), (100_000, 9.2)]:
        texts = [np.random.default_rng(3).integers(0, 200_000, size)]
        assert build_corpus(texts, tmp_path / "c")["bytes_per_token"] <= most


def test_description(built):
    path = built([[A, B, 9], [], [C]])
    size = path.stat().st_size
    assert describe(path) == {
        "version": 2,
        "texts": 2,
        "tokens": 4,
        "largest_token": 9,
        "tokenizer": None,
        "bytes": size,
        "bytes_per_token": size / 4,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_tokenizer_is_recorded(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ValueError, match=f"^{folder} has no tokenizer: name a model's folder or its tokenizer.json"):
        build_corpus([[A]], tmp_path / "c", tokenizer=folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    of = build_corpus([[A, B]], tmp_path / "c", tokenizer=folder)["tokenizer"]
    assert of == fingerprint(folder) and verify(tmp_path / "c")["tokenizer"] == of


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_every_kind_of_source_gives_the_same_file(tmp_path):
    texts = [[A, B, C], [B, 70_000], [D]]
    expected = tmp_path / "expected"
    told = []
    build_corpus(texts, expected, progress=told.append)
    assert len(told) >= 2
    data = lines({"token_ids": text} for text in texts)
    (tmp_path / "a.jsonl").write_bytes(data + b"\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "b.jsonl").write_bytes(lines([{"response_ids": texts[0], "prompt_ids": [5]}, {"response_ids": []}]))
    (tmp_path / "c.jsonl").write_bytes(lines([{"x": texts[1], "token_ids": [5]}, {"x": texts[2]}]))
    np.save(tmp_path / "2.npy", np.array(texts[2], np.uint16))
    out = tmp_path / "out"
    for sources, key in [
        ([tmp_path / "a.jsonl"], None),
        (str(tmp_path / "a.jsonl.gz"), None),
        ([tmp_path / "b.jsonl", texts[1], tmp_path / "2.npy"], None),
        ((np.array(text) for text in texts), None),
        ([[], texts[0], (), texts[1], np.empty(0, np.float32), texts[2]], None),
    ]:
        build_corpus(sources, out, key=key)
        assert out.read_bytes() == expected.read_bytes()
    build_corpus([tmp_path / "c.jsonl"], out, key="x")
    build_corpus(texts[1:], expected)
    assert out.read_bytes() == expected.read_bytes()


def test_zstd(tmp_path):
    if shutil.which("zstd") is None:
        pytest.skip("there is no zstd command")
    (tmp_path / "a.jsonl").write_bytes(lines([{"token_ids": [A, B]}] * 5000))
    subprocess.run(["zstd", "-q", tmp_path / "a.jsonl"], check=True)
    build_corpus([tmp_path / "a.jsonl"], tmp_path / "expected")
    build_corpus([tmp_path / "a.jsonl.zst"], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "expected").read_bytes()
    whole = (tmp_path / "a.jsonl.zst").read_bytes()
    (tmp_path / "a.jsonl.zst").write_bytes(whole[:-3])
    with pytest.raises(ValueError, match="a.jsonl.zst cannot be decompressed"):
        build_corpus([tmp_path / "a.jsonl.zst"], tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        build_corpus([tmp_path / "missing.zst"], tmp_path / "out")


def test_zstd_without_the_command(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.zst").write_bytes(b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no zstd command: install zstd"):
        build_corpus([tmp_path / "a.jsonl.zst"], tmp_path / "out")


TOO_LARGE = 2**31


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"token_ids": [1]}\n{"token_ids": [-1]}\n', "line 2 has token id -1: give integers from 0"),
        ("a.jsonl", lines([{"token_ids": [TOO_LARGE]}]), f"line 1 has token id {TOO_LARGE}"),
        ("a.jsonl", lines([{"token_ids": [2**70]}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"token_ids": [1.5]}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"token_ids": [True, False]}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"token_ids": [[1, 2], [3]]}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"token_ids": [[1, 2]]}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"token_ids": "text"}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"token_ids": None}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"text": "1 2"}]), "line 1 has no 'token_ids' or 'response_ids'"),
        ("a.jsonl", lines([[1, 2]]), "line 1 has no 'token_ids' or 'response_ids'"),
        ("a.jsonl", b'{"token_ids": [1]}\n\n{"token', "line 3 is no JSON"),
        ("a.jsonl", b"\xff\xfe{}", "line 1 is no JSON"),
        ("a.jsonl", b"", "there is no token in the texts given"),
        ("a.jsonl", lines([{"token_ids": []}]), "there is no token in the texts given"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz cannot be decompressed"),
        ("a.jsonl.gz", gzip.compress(lines([{"token_ids": [1] * 99}]))[:-9], "a.jsonl.gz cannot be decompressed"),
        ("a.npy", b"no array", "a.npy is no .npy array"),
        ("a.npy", b"", "a.npy is no .npy array"),
    ],
)
def test_bad_files_leave_the_old_corpus(tmp_path, name, data, message):
    out = tmp_path / "out"
    build_corpus([[A]], out)
    old = out.read_bytes()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        build_corpus([tmp_path / name], out)
    assert "\n" not in str(error.value)
    assert out.read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out"])


@pytest.mark.parametrize("array", [np.zeros((2, 2), np.int32), np.zeros(3, np.float32), np.array([1, -5])])
def test_bad_arrays(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match="a.npy (is not a list of token ids|has token id -5)"):
        build_corpus([tmp_path / "a.npy"], tmp_path / "out")
    with pytest.raises(ValueError, match="text 2 (is not a list of token ids|has token id -5)"):
        build_corpus([[A], array], tmp_path / "out")


def test_bad_sources(tmp_path):
    with pytest.raises(ValueError, match="text 1 is not a list of token ids"):
        build_corpus([1, 2, 3], tmp_path / "out")
    with pytest.raises(ValueError, match="no 'ids'"):
        (tmp_path / "a.jsonl").write_bytes(lines([{"token_ids": [1]}]))
        build_corpus([tmp_path / "a.jsonl"], tmp_path / "out", key="ids")
    with pytest.raises(FileNotFoundError):
        build_corpus([tmp_path / "missing.jsonl"], tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        build_corpus([[A]], tmp_path / "missing" / "out")
    assert not (tmp_path / "out").exists()


def test_failed_write_leaves_the_old_corpus(tmp_path, monkeypatch):
    out = tmp_path / "out"
    build_corpus([[A]], out)
    old = out.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        build_corpus([[B]], out)
    assert out.read_bytes() == old and list(tmp_path.iterdir()) == [out]


def test_a_reader_keeps_the_file_that_it_opened(library, tmp_path):
    out = tmp_path / "out"
    build_corpus([[A, B]] * 2000, out)
    c = InC(library, out)
    build_corpus([[C]], out)
    match = (*c.advance(c.start(), A)[1], 1)
    assert c.next(match, 8) == [(B, 2000)]
    c.close()


def test_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sam-core\[corpus\]'"):
        build_corpus([[A]], tmp_path / "out")
    assert not list(tmp_path.iterdir())
