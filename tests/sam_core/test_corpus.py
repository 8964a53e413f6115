# SPDX-License-Identifier: Apache-2.0
"""Corpora: the reader in Python against brute force, the C against it, the builder, and files that are refused."""

import gzip
import itertools
import json
import os
import shutil
import stat
import subprocess
import zlib
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import twin
from hypothesis import given, settings
from sam_core.corpus import END, build_corpus, describe
from sam_core.tokenizer import fingerprint
from steps import step

from sam_core import Pool, corpus

A, B, C, D = range(4)
MAX_MATCH, PROBES = 32, 16


def built(tmp_path, texts):
    """Build a corpus of texts given as lists; return its path."""
    path = tmp_path / "texts.corpus"
    build_corpus(texts, path)
    return path


def by_count(item):
    return -item[1], item[0]


class Brute:
    """The expected answers of a reader about a string w, found by looking at every place of the texts."""

    def __init__(self, texts):
        self.stream = [token for text in texts if text for token in [*text, END]]

    def ends(self, w):
        """Positions of the tokens that follow an occurrence of w."""
        n = len(w)
        places = (p for p in range(len(self.stream) - n) if self.stream[p : p + n] == w)
        return [p + n for p in places if n or self.stream[p] != END]

    def check(self, reader, context, history, most):
        """Check a reader's context after `history`, at each length."""
        assert context[0] == reader.start()[0]
        for length, (low, high) in enumerate(context):
            ends, match = self.ends(history[len(history) - length :]), (low, high, length)
            assert high - low == len(ends) > 0 and reader.first(match) == min(ends)
            following = Counter(self.stream[p] for p in ends if self.stream[p] != END)
            ranked = sorted(following.items(), key=by_count)
            proposed = reader.next(match, most)
            assert len(proposed) <= most and proposed == sorted(proposed, key=by_count)
            assert dict(proposed).items() <= following.items()
            sure = [item for item in ranked if item[1] * 16 >= len(ends) or len(ends) <= 16]
            # what is surely found fills the first places, unless others are as frequent
            assert [count for _, count in proposed[: len(sure)]] == [count for _, count in sure[:most]]
            if len(ends) <= PROBES:
                assert proposed == ranked[:most]
            elif most >= PROBES:
                assert set(sure) <= set(proposed)
            for token in [A, B, C, D, END]:
                longer, count = reader.extend(match, token), following[token]
                assert (longer is None) == (count == 0)
                if longer:
                    assert (longer[1] - longer[0], longer[2]) == (count, length + 1)
                    assert low <= longer[0] < longer[1] <= high
        longer = history[len(history) - len(context) :]
        assert len(longer) < len(context) or len(context) > MAX_MATCH or not self.ends(longer)


TEXTS = st.lists(st.lists(st.integers(A, D), max_size=30) | st.lists(st.just(A), max_size=60), max_size=8)


@settings(max_examples=60)
@given(
    data=st.data(), texts=TEXTS.filter(any), history=st.lists(st.integers(A, D), max_size=12), most=st.integers(0, 16)
)
def test_reader_agrees_with_brute_force(data, tmp_path_factory, texts, history, most):
    path = built(tmp_path_factory.mktemp("brute"), texts)
    brute, reader = Brute(texts), corpus.Corpus(path)
    if data.draw(st.booleans(), "copies a text"):
        text = data.draw(st.sampled_from(texts), "text")
        history = history + text + history
    context = reader.start()
    for fed, token in enumerate(history, 1):
        context = reader.advance(context, token)
        if fed % 7 == 0 or fed == len(history):
            brute.check(reader, context, history[:fed], most)


@pytest.mark.parametrize("rule", ["oldest", "suffix", "blend"])
def test_c_agrees_with_python_on_large_intervals(rule, tmp_path):
    """First occurrences need up to three levels of blocks; some strings occur more often than successors are probed."""
    random, path = np.random.default_rng(1), tmp_path / "large.corpus"
    build_corpus([random.integers(0, 3, 300_000), random.zipf(1.3, 5000) % 60 + 3], path)
    pools = [pool(rule=rule, sources=("group",), corpus=path) for pool in (Pool, twin.Pool)]
    for high, length in itertools.product((3, 60), (1, 2, 3, 5, 9)):
        for _ in range(4):
            text = random.integers(0 if high == 3 else 3, high, length).tolist()
            drafts = [step(pool, [(pool.open(text, None), [])], 8)[0] for pool in pools]
            assert drafts[0] == drafts[1]


@pytest.mark.parametrize("reader", [corpus.Corpus, lambda path: Pool(corpus=path)], ids=["python", "c"])
def test_header_and_size_are_checked(reader, tmp_path):
    sound, bad = built(tmp_path, [[A, B, C], [B, C]]).read_bytes(), tmp_path / "bad.corpus"
    of = [(sound[:length], "no corpus" if length < 56 else "cut short") for length in (0, 7, 55, 56, len(sound) - 1)]
    of += [(sound + b"\0", "added to"), (b"#!/bin/sh\n" * 1000, "no corpus: name a file that build_corpus wrote")]
    for at in range(56):
        flipped = sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :]
        parts = {8: "no corpus", 12: "version", 16: "version|machines", 56: "damaged header"}
        of.append((flipped, next(said for end, said in parts.items() if at < end)))
    for data, said in of:
        bad.write_bytes(data)
        with pytest.raises(ValueError, match=f"{bad}.*({said})"):
            reader(bad)
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "missing")


def test_each_flipped_byte_is_noticed(tmp_path):
    path = built(tmp_path, [[A, B, C, A, B] * 20, [B, C]])
    sound = path.read_bytes()
    assert len(sound) == 64 + 448 + 448 + 64 + 64
    for at in range(64, len(sound), 7):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        with pytest.raises(ValueError, match="damaged body"):
            describe(path)


def test_the_file_is_the_same_everywhere(tmp_path):
    """If this checksum changes, the format has changed: raise the version."""
    path = built(tmp_path, [[A, B, C, B, C], [B, A], [151_643], list(range(200))])
    assert zlib.crc32(path.read_bytes()) == 1290831845


def test_description_has_the_tokenizer(tmp_path):
    folder, path = tmp_path / "model", tmp_path / "c"
    folder.mkdir()
    with pytest.raises(ValueError, match=f"^{folder} has no tokenizer: name a model's folder or its tokenizer.json"):
        build_corpus([[A]], path, tokenizer=folder)
    (folder / "tokenizer.json").write_text('{"a": 0, "b": 1}')
    build_corpus([[A, B, 9], [], [C]], path, tokenizer=folder)
    size, counts = path.stat().st_size, {"version": 2, "texts": 2, "tokens": 4, "largest_token": 9}
    counts |= {"tokenizer": fingerprint(folder), "bytes": size, "bytes_per_token": size / 4}
    assert describe(path) == counts
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_every_kind_of_source_gives_the_same_file(tmp_path):
    texts, told, out = [[A, B, C], [B, 70_000], [D]], [], tmp_path / "out"
    build_corpus(texts, out, progress=told.append)
    expected, data = out.read_bytes(), lines({"token_ids": text} for text in texts)
    assert len(told) >= 2
    for name, content in {
        "a.jsonl": data + b"\n",
        "a.jsonl.gz": gzip.compress(data),
        "b.jsonl": lines([{"response_ids": texts[0], "prompt_ids": [5]}, {"response_ids": []}]),
        "c.jsonl": lines([{"x": text, "token_ids": [5]} for text in texts]),
    }.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "2.npy", np.array(texts[2], np.uint16))
    sources = [[tmp_path / "a.jsonl"], str(tmp_path / "a.jsonl.gz"), [tmp_path / "c.jsonl"]]
    sources += [
        [tmp_path / "b.jsonl", texts[1], tmp_path / "2.npy"],
        [[], texts[0], (), texts[1], np.empty(0), texts[2]],
    ]
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", tmp_path / "a.jsonl"], check=True)
        sources.append([tmp_path / "a.jsonl.zst"])
    for number, source in enumerate(sources):
        build_corpus(source, out, key="x" if number == 2 else None)
        assert out.read_bytes() == expected


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"token_ids": [1]}\n{"token_ids": [-1]}\n', "line 2 has token id -1: give integers from 0"),
        ("a.jsonl", lines([{"token_ids": [1 << 31]}]), "line 1 has token id 2147483648"),
        ("a.jsonl", lines([{"token_ids": [[1, 2]]}]), "line 1 is not a list of token ids"),
        ("a.jsonl", lines([{"text": "1 2"}]), "line 1 has no 'token_ids' or 'response_ids'"),
        ("a.jsonl", b'{"token_ids": [1]}\n\n{"token', "line 3 is no JSON"),
        ("a.jsonl", lines([{"token_ids": []}]), "there is no token in the texts given"),
        ("a.jsonl.gz", gzip.compress(lines([{"token_ids": [1] * 99}]))[:-9], "a.jsonl.gz cannot be decompressed"),
        ("a.jsonl.zst", b"no zstd", "a.jsonl.zst cannot be decompressed|zstd"),
        ("a.npy", b"no array", "a.npy is no .npy array"),
    ],
)
def test_what_fails_leaves_the_old_corpus(tmp_path, monkeypatch, name, data, message):
    out = tmp_path / "out"
    build_corpus([[A]], out)
    old = out.read_bytes()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        build_corpus([tmp_path / name], out)
    assert "\n" not in str(error.value)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        build_corpus([[B]], out)
    assert out.read_bytes() == old
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out"])
