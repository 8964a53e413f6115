# SPDX-License-Identifier: Apache-2.0
"""Saved pools are restored or refused with the right words, and a file is always whole."""

import errno
import os
import random
import resource
import signal
import stat
import struct
import subprocess
import sys

import pytest
from sam_core.corpus import build_corpus
from steps import ALL, drafts, step

from sam_core import Pool, options

HEADER = struct.Struct("<8sIIQIIQQQQQQ")
DAMAGED = "is damaged: restore it from a copy, or start with a new pool"


def sealed(data):
    """Return the same contents with their correct checksum, as persist.h defines it."""
    if len(data) % 8:
        return data
    value = 0
    for (unit,) in struct.iter_unpack("<Q", data[:-8]):
        value = (value ^ unit) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        value ^= value >> 32
    return data[:-8] + struct.pack("<Q", value)


def filled(rule="newest", sources=ALL, groups=6, **arguments):
    """Return a pool with closed groups of several texts; the last group also has an open slot."""
    pool, rng = Pool(rule=rule, sources=sources, **arguments), random.Random(1)
    for number in range(groups):
        key = b"name %d" % number if number % 3 == 2 else "by_prompt"
        slots = [pool.open([number, 1, 2], key) for _ in range(3)]
        for _ in range(30):
            step(pool, [(slot, [rng.randrange(4)]) for slot in slots], 4)
        for slot in slots[: 2 if number == groups - 1 else 3]:
            pool.close(slot)
    return pool


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "pool"
    filled().save(path)
    return path.read_bytes()


def put(path, data, mode=0o600):
    path.write_bytes(data)
    path.chmod(mode)
    return path


def refused(path, message, error=ValueError):
    for read in (Pool.load, Pool.describe):
        with pytest.raises(error, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("sources", [ALL, ("group", "history")])
@pytest.mark.parametrize("rule", options.RULES)
def test_loaded_pool_drafts_as_the_saved_one_after_a_rebuild(rule, sources, tmp_path):
    pool = filled(rule, sources)
    pool.save(tmp_path / "pool")
    loaded, again = Pool.load(tmp_path / "pool"), Pool.load(os.fsencode(tmp_path / "pool"))
    model = {"version": 3, "vocab_size": None, "tokenizer": None, "rule": rule, "sources": [*sources]}
    counts = {"groups": 6, "texts": 17, "tokens": 17 * 33, "bytes": (tmp_path / "pool").stat().st_size}
    assert Pool.describe(tmp_path / "pool") == model | counts
    stats = loaded.stats()
    assert (stats["groups"], stats["slots_open"], stats["appended"], stats["history_texts"]) == (6, 0, 0, 17)
    rng, known = random.Random(2), 0
    for number in range(5):
        key = b"name %d" % number if number % 3 == 2 else "by_prompt"
        # Forgetting a text makes the saved pool build its index again, as the loaded one does.
        pool.close(pool.open([number, 1, 2], key), keep=False)
        slots = {each: each.open([number, 1, 2], key) for each in (pool, loaded)}
        for _ in range(20):
            tokens = [rng.randrange(4)]
            wanted, got = (drafts(each, [(slot, tokens)], 4) for each, slot in slots.items())
            assert wanted == got
            known += len(wanted[0][0])
    assert known > 100 and loaded._validate() is None
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "pool").read_bytes()


def test_empty_pool_and_arguments_of_load(tmp_path):
    path = tmp_path / "pool"
    Pool(sources=("request",)).save(path)
    build_corpus([[5, 6, 7, 8]], tmp_path / "corpus")
    least = Pool().stats()["bytes_used"]
    loaded = Pool.load(path=path, memory_bytes=least + 50_000, corpus=tmp_path / "corpus", min_prob=0.0)
    assert loaded.stats()["memory_bytes"] == least + 50_000 and loaded.stats()["groups"] == 0
    assert step(loaded, [(loaded.open([5, 6]), [])])[0][:2] == [7, 8]
    with pytest.raises(ValueError, match="memory_bytes is 7: a pool needs at least"):
        Pool.load(path, 7)
    with pytest.raises(FileNotFoundError, match="no corpus here"):
        Pool.load(path, corpus="no corpus here")
    for call in (Pool.load, Pool.describe, Pool().save):
        with pytest.raises(ValueError, match="embedded null"):
            call("a\0b")


def test_every_flipped_bit_and_missing_byte_is_noticed(saved, tmp_path):
    path, rng, size = tmp_path / "pool", random.Random(6), len(saved)
    assert sealed(saved) == saved, "the checksum is what persist.h says"
    bits = [*range(8 * HEADER.size), *(rng.randrange(8 * size) for _ in range(99)), *range(8 * size - 64, 8 * size)]
    damaged = [saved[: bit // 8] + bytes([saved[bit // 8] ^ 1 << bit % 8]) + saved[bit // 8 + 1 :] for bit in bits]
    lengths = [*range(HEADER.size + 9), *range(200, size, 9973), *range(size - 9, size)]
    for data in [*damaged, *(saved[:length] for length in lengths), saved + bytes(8)]:
        put(path, data)
        with pytest.raises(ValueError, match="pool' is (no saved pool|from|cut short or added to|damaged)"):
            Pool.describe(path)


def field(saved, **changes):
    """Return the file's contents with other values in its header and a correct checksum."""
    names = ("magic", "version", "order", "bytes", "rule", "sources")
    names += ("learned", "groups", "texts", "tokens", "vocab_size", "tokenizer")
    values = dict(zip(names, HEADER.unpack_from(saved), strict=True)) | changes
    return sealed(HEADER.pack(*values.values()) + saved[HEADER.size :])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": b"samcorp\0"}, "is no saved pool: name a file that Pool.save wrote"),
        ({"version": 2}, "is from another version of sam_core: load it there, or start with a new pool"),
        ({"order": 0x04030201}, "is from a machine with another byte order: load it there"),
        ({"rule": 5}, "is damaged"),
        ({"rule": 2}, "is from another version of sam_core: load it there, or start with a new pool"),
        ({"sources": 1 << 31 | 3}, "is damaged"),
        ({"sources": 3}, "is from another version of sam_core: load it there, or start with a new pool"),
        ({"vocab_size": (1 << 31) + 1}, "is damaged"),
        *(({name: value}, DAMAGED) for name in ("learned", "groups") for value in (7, 2**63)),
    ],
)
def test_other_headers(saved, changes, message, tmp_path):
    refused(put(tmp_path / "pool", field(saved, **changes)), message)


def test_a_model_of_another_vocabulary_or_tokenizer(tmp_path):
    path, of, other = tmp_path / "pool", "00000000000000ab", "0123456789abcdef"
    Pool(vocab_size=1000, tokenizer=of).save(path)
    assert {"vocab_size": 1000, "tokenizer": of}.items() <= Pool.describe(path).items()
    with pytest.raises(ValueError, match=f"{path}' is of a vocabulary of 1000 tokens, but the model's has 999: name a"):
        Pool.load(path, vocab_size=999)
    with pytest.raises(ValueError, match=rf"{path}' is of another tokenizer \(fingerprint {of}\) than .*{other}\): na"):
        Pool.load(path, tokenizer=other)
    for known in ({}, {"vocab_size": 1000}, {"tokenizer": of}):
        Pool.load(path, **known).save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == path.read_bytes(), "what is not told is the file's"
    Pool().save(path)
    Pool.load(path, vocab_size=7, tokenizer=other).save(path)
    assert (Pool.describe(path)["vocab_size"], Pool.describe(path)["tokenizer"]) == (7, other)


SUCCESSORS = [(7, 4 << 8 | 15), (-1, 1), (7, 16), (7, 5 << 8)]
"""(token, seen) as in model.h: a valid entry, a negative token, one seen too often, one asked too often in vain."""


def test_contents_are_checked_although_the_checksum_is_right(tmp_path):
    """Whoever can write the file can write its checksum, too. fuzz/fuzz_files.c tries many more changes."""
    path, pool = tmp_path / "pool", Pool(rule="newest")
    for key in ("by_prompt", b"names", b"name"):
        slot = pool.open([1, 2], key)
        pool.append(slot, [3, 4, 5])
        pool.close(slot)
    pool.save(path)
    data = path.read_bytes()
    start = HEADER.size + HEADER.unpack_from(data)[6]
    groups = HEADER.unpack_from(data)[7]
    nobody = struct.pack("<IIQ4s", 2, 0, 4, b"none")
    end = start + len(data[start:-8].rstrip(b"\0")) // 4 * 4 + 4
    successors = [data[: start - 8] + struct.pack("<iI", *last) + data[start:] for last in SUCCESSORS]
    assert Pool.load(put(path, sealed(successors.pop(0))))._validate() is None
    for changed, count in (
        *((data, groups) for data in successors),
        (data[:-8] + bytes(16), groups),  # too long
        (data[: HEADER.size] + b"\xff" * 4 + data[HEADER.size + 4 :], groups),  # a counter of 1023 outcomes
        (data[:end] + nobody + bytes(-(end + len(nobody)) % 8 + 8), groups + 1),  # a group without texts
    ):
        refused(put(path, field(changed, bytes=len(changed), groups=count)), "is damaged")
    refused(put(path, field(data[:-4], bytes=len(data) - 4)), "is cut short or added to")


def test_files_that_are_none(saved, tmp_path):
    refused(tmp_path / "nowhere", "No such file or directory", FileNotFoundError)
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path, tmp_path / "fifo"):
        refused(path, "is no regular file: name a file that Pool.save wrote")
    path = put(tmp_path / "pool", saved)
    (tmp_path / "link").symlink_to("pool")
    refused(tmp_path / "link", "is a symbolic link: name the file itself")
    refused(path / "x", "Not a directory", NotADirectoryError)
    for mode in (0o640, 0o602, 0o610):
        path.chmod(mode)
        refused(path, "is open to other users: make it private by chmod 600 if you trust its contents")
    path.chmod(0o400)
    assert Pool.load(path).stats()["groups"] == 6
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        refused(path, "is owned by another user: copy it to a file of your own if you trust it")
    for data in (b"", b"sampool\0", b"#!/bin/sh\n" * 100):
        refused(put(tmp_path / "foreign", data), "is no saved pool: name a file that Pool.save wrote")


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    pool, path, mask = filled(), put(tmp_path / "pool", b"something else", 0o666), os.umask(0)
    pool.save(path)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "a file is private"
    before, stats = path.read_bytes(), pool.stats()
    for wrong, error in ((tmp_path / "nowhere" / "pool", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error):
            pool.save(wrong)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for size in (0, 1000, len(before) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError) as caught:
                pool.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG and caught.value.filename == str(path)
    signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["pool"]
    assert pool.stats() == stats and pool._validate() is None


def test_what_a_pool_is_not_saved_over(tmp_path):
    corpus = tmp_path / "corpus"
    build_corpus([[1, 2, 3]], corpus)
    (tmp_path / "link").symlink_to("corpus")
    os.mkfifo(tmp_path / "fifo")
    before = corpus.read_bytes()
    for path, message in (
        (corpus, "is a corpus, which would be lost: name another path"),
        (tmp_path / "link", "is a symbolic link: name the file itself"),
        (tmp_path / "fifo", "is no regular file: name another path"),
    ):
        with pytest.raises(ValueError, match=f"'{path}' {message}"):
            Pool(corpus=corpus).save(path)
    assert corpus.read_bytes() == before and len(os.listdir(tmp_path)) == 3


SAVER = """
import sys
from sam_core import Pool
pool = Pool(rule="newest")
for number in range(int(sys.argv[2])):
    slot = pool.open([number])
    pool.append(slot, list(range(500)))
    pool.close(slot)
print("ready", flush=True)
while True:
    pool.save(sys.argv[1])
"""


def test_two_processes_saving_to_one_path(tmp_path):
    """A reader finds the complete file of one process or the other, even if a process is killed while saving."""
    path, seen, turn, pipe = tmp_path / "pool", set(), 0, subprocess.PIPE
    savers = [subprocess.Popen([sys.executable, "-c", SAVER, path, groups], stdout=pipe) for groups in ("3", "40")]
    try:
        for saver in savers:
            assert saver.stdout.readline() == b"ready\n"
        while not path.exists():
            pass
        while len(seen) < 2 or turn < 100:
            turn += 1
            loaded = Pool.describe(path)
            assert loaded["texts"] == loaded["groups"] and loaded["tokens"] == 501 * loaded["groups"]
            seen.add(loaded["groups"])
    finally:
        for saver in savers:
            saver.kill()
            saver.communicate()
    assert seen == {3, 40} and Pool.load(path)._validate() is None
    assert len(os.listdir(tmp_path)) <= 3  # a killed saver may leave its temporary file
