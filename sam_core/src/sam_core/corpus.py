# SPDX-License-Identifier: Apache-2.0
"""Corpora: prepared collections of texts as static sources of drafts. Build and describe their files.

A corpus is built once and then read by any number of engines, each of which maps the file. The format is described in
csrc/corpus.h. Building needs pydivsufsort (pip install 'sam-core[corpus]'); reading needs nothing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from sam_core.files import check_output, replacing
from sam_core.tokenizer import file_of, fingerprint

END = -1
"""Ends each text in the token array."""
MAX_TOKEN = 2**31 - 1
MAX_SIZE = 2**32 - 1
"""Maximum tokens of a corpus, including one END per text: positions are stored in 32 bits."""
KEYS = ("token_ids", "response_ids")
"""Keys of the tokens in a row of a JSONL file; the first that is present is used."""

_HEADER = struct.Struct("<8sIIQQIIIIII")
_MAGIC, _ORDER, _VERSION = b"samcorp\0", 0x01020304, 2
_ALIGN = _BLOCK = 64
_MAX_BUCKETS = 1 << 18
_CHUNK = 1 << 20

Tokens = npt.NDArray[np.int32]
Path = str | os.PathLike[str]


def build_corpus(
    sources: Path | Iterable[Path | Sequence[int] | npt.NDArray[Any]],
    path: Path,
    *,
    key: str | None = None,
    tokenizer: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Write a corpus of the texts in `sources` to `path`, or leave `path` as it was.

    The new file is renamed over an old one, so engines that have the old one open keep it.

    Args:
        sources: paths of files, and texts, in the order in which the corpus holds them. A file is a .npy array int[n],
            one text, or JSON lines, one text per line, plain or compressed (.gz, .zst). A text is a sequence or array
            of token ids from 0 to 2**31 - 1; empty ones are left out.
        key: key of the token ids in a JSON line; None: the first of KEYS that is present.
        tokenizer: folder or file of the tokenizer whose ids the texts hold (see `tokenizer.fingerprint`). A model with
            another tokenizer then refuses the corpus. None: unknown.
        progress: called with a short line about what has been done, up to a few times per second.

    Returns:
        What `describe` says about the new file.

    Raises:
        ValueError: a source does not have this form, there is no token at all, or `tokenizer` holds none; one sentence
            with file and line.
        OSError: a file cannot be read or `path` cannot be written.
        ModuleNotFoundError: pydivsufsort is not installed.

    Building needs about 30 bytes of memory per token.
    """
    out = pathlib.Path(path)
    check_output(out, () if tokenizer is None else (file_of(tokenizer),))
    divsufsort = _divsufsort()
    digits = None if tokenizer is None else fingerprint(tokenizer)
    if tokenizer is not None and digits is None:
        raise ValueError(f"{os.fspath(tokenizer)} has no tokenizer: name a model's folder or its tokenizer.json")
    report = progress or (lambda line: None)
    pieces = _pieces([sources] if isinstance(sources, (str, os.PathLike)) else sources, out, key, report)
    size = sum(map(len, pieces))
    if not pieces:
        raise ValueError("there is no token in the texts given: a corpus needs at least one")
    if size > MAX_SIZE:
        raise ValueError(
            f"the texts have {size:,} tokens with an END after each text, a corpus holds {MAX_SIZE:,}: split them"
        )
    tokens, texts = np.concatenate(pieces), len(pieces) // 2
    del pieces
    report(f"sorting {size - texts:,} tokens")
    suffixes = _sort(tokens, divsufsort)[texts:]
    report(f"writing {os.fspath(path)}")
    with replacing(out) as temporary:
        _write(temporary, tokens, suffixes, texts, int(digits or "0", 16))
        return describe(temporary)


def describe(path: Path) -> dict[str, Any]:
    """What the header of a corpus says: texts, tokens, largest_token, tokenizer, bytes, bytes_per_token, version.

    tokenizer: fingerprint of the tokenizer; None if unknown.

    Reads the whole file for its checksum, which takes about a second per GB. Raises ValueError, in one sentence, if the
    file is no corpus, or is damaged.
    """
    header = _read_header(path)
    if _body_crc(path) != header["body_crc"]:
        raise ValueError(f"{os.fspath(path)} is a corpus with a damaged body: copy or build it again")
    tokens = header["size"] - header["texts"]
    return {
        "version": header["version"],
        "texts": header["texts"],
        "tokens": tokens,
        "largest_token": header["largest"],
        "tokenizer": f"{header['tokenizer']:016x}" if header["tokenizer"] else None,
        "bytes": header["bytes"],
        "bytes_per_token": header["bytes"] / tokens,
    }


class Corpus:
    """A corpus open for reading, in plain Python: what csrc/corpus.c does, for tests and the lab.

    An interval (low, high) stands for the suffixes low .. high - 1. A context is the list of the intervals of a text's
    last 0, 1, 2, ... tokens, as far as they occur; a match is (low, high, length).

    Raises ValueError, as `describe` does, if `path` is no corpus, or is damaged in its header or cut short.
    """

    MAX_MATCH = 32
    PROBES = 16

    def __init__(self, path: Path) -> None:
        self.tokens, self.suffixes = _sections(path, _read_header(path))

    def _token(self, suffix: int, depth: int) -> int:
        return int(self.tokens[int(self.suffixes[suffix]) + depth])

    def _narrow(self, low: int, high: int, depth: int, token: int) -> tuple[int, int]:
        """The interval of those suffixes in [low, high) that have `token` at `depth`, maybe empty."""
        suffixes = range(high)
        first = bisect_left(suffixes, token, low, key=lambda i: self._token(i, depth))
        return first, bisect_left(suffixes, token + 1, first, key=lambda i: self._token(i, depth))

    def start(self) -> list[tuple[int, int]]:
        """The context of an empty text."""
        return [(0, len(self.suffixes))]

    def advance(self, context: list[tuple[int, int]], token: int) -> list[tuple[int, int]]:
        """The context after one more token."""
        longer = self.start()
        for depth, (low, high) in enumerate(context[: self.MAX_MATCH]):
            low, high = self._narrow(low, high, depth, token)
            if low == high:
                break
            longer.append((low, high))
        return longer

    def extend(self, match: tuple[int, int, int], token: int) -> tuple[int, int, int] | None:
        """The match extended by `token`; None if that does not occur."""
        low, high = self._narrow(*match, token)
        return None if token < 0 or low == high else (low, high, match[2] + 1)

    def first(self, match: tuple[int, int, int]) -> int:
        """Position of the token that follows the first occurrence; END may stand there."""
        low, high, length = match
        return int(self.suffixes[low:high].min()) + length

    def next(self, match: tuple[int, int, int], most: int) -> list[tuple[int, int]]:
        """At most `most` pairs (next token, exact count); candidates are chosen and ordered as in the C code."""
        low, high, length = match
        size = high - low
        probes = min(size, self.PROBES)
        candidates = {self._token(low + (2 * i + 1) * size // (2 * probes), length) for i in range(probes)} - {END}
        spans = ((token, self._narrow(low, high, length, token)) for token in candidates)
        return sorted(((token, end - start) for token, (start, end) in spans), key=lambda c: (-c[1], c[0]))[:most]


# ---- reading texts


def _pieces(sources: Iterable[Any], out: pathlib.Path, key: str | None, report: Callable[[str], None]) -> list[Tokens]:
    """The texts of all sources, each followed by END; empty ones are left out. Raises as build_corpus does."""
    pieces: list[Tokens] = []
    end = np.array([END], np.int32)
    for number, source in enumerate(sources, 1):
        is_file = isinstance(source, (str, os.PathLike))
        if is_file:
            check_output(out, (source,))
        for where, text in _texts(source, f"text {number}", key):
            if len(tokens := _checked(text, where)):
                pieces += [tokens, end]
        if is_file:
            report(f"read {os.fspath(source)}: {sum(map(len, pieces[::2])):,} tokens so far")
    return pieces


def _texts(source: Any, name: str, key: str | None) -> Iterator[tuple[str, Any]]:
    """The texts of one source, each with its location for error messages."""
    if not isinstance(source, (str, os.PathLike)):
        yield name, source
        return
    path = os.fspath(source)
    if path.endswith(".npy"):
        try:
            yield path, np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError):
            raise ValueError(f"{path} is no .npy array of token ids: write one with numpy.save") from None
        return
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path}, line {number}", _row(line, f"{path}, line {number}", key)


def _row(line: bytes, where: str, key: str | None) -> Any:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON ({error}): write one JSON object per line") from None
    for name in KEYS if key is None else (key,):
        if isinstance(row, dict) and name in row:
            return row[name]
    expected_key = repr(key) if key else " or ".join(map(repr, KEYS))
    raise ValueError(f"{where} has no {expected_key}: name the key that holds a list of token ids")


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of lines, plain or compressed (.gz, .zst by the command zstd), for reading in binary.

    Raises:
        ValueError: a compressed file is damaged or cut short, or there is no command zstd; one sentence. For .gz it is
            raised when the lines before have been read.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(open(name, "rb"))
        reason = ""
        try:
            if name.endswith(".zst"):
                packed, file = file, stack.enter_context(tempfile.TemporaryFile())
                done = subprocess.run(["zstd", "-dcq"], stdin=packed, stdout=file, stderr=subprocess.PIPE)
                if done.returncode:
                    reason = " ".join(done.stderr.decode(errors="replace").split()) or f"status {done.returncode}"
                file.seek(0)
            elif name.endswith(".gz"):
                unpacked = stack.enter_context(gzip.open(file))
                file = cast(IO[bytes], unpacked)
            if not reason:
                yield file
        except FileNotFoundError as error:
            if error.filename != "zstd":
                raise
            raise ValueError(f"{name} is compressed and there is no zstd command: install it") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            reason = str(error)
        if reason:
            raise ValueError(f"{name} cannot be decompressed ({reason}): copy or compress it again")


def _checked(text: Any, where: str) -> Tokens:
    """A text as int32[n]. Raises ValueError unless it is a sequence of token ids."""
    try:
        array = np.asarray(text)
    except ValueError:
        array = np.asarray(None)
    if array.ndim == 1 and array.size == 0:
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{where} is not a list of token ids: give integers from 0 to {MAX_TOKEN}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > MAX_TOKEN:
        raise ValueError(f"{where} has token id {low if low < 0 else high}: give integers from 0 to {MAX_TOKEN}")
    return array.astype(np.int32)


# ---- building


def _divsufsort() -> Callable[..., npt.NDArray[Any]]:
    try:
        from pydivsufsort import divsufsort
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"building a corpus needs {error.name}, which is not installed: pip install 'sam-core[corpus]'"
        ) from None
    sort: Callable[..., npt.NDArray[Any]] = divsufsort
    return sort


def _sort(tokens: Tokens, divsufsort: Callable[..., npt.NDArray[Any]]) -> npt.NDArray[np.uint32]:
    """All suffixes of `tokens` in lexicographic order, END before all ids: uint32[len(tokens)].

    libdivsufsort sorts bytes. Each token becomes the same number of bytes, the highest first; the order of the suffixes
    that start at a token's first byte is the result.
    """
    values = tokens.view(np.uint32) + np.uint32(1)  # END is 0
    width = (int(values.max()).bit_length() + 7) // 8
    coded = values.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - width :].reshape(-1)
    del values
    order = divsufsort(np.ascontiguousarray(coded))
    suffixes, done = np.empty(len(tokens), np.uint32), 0
    for at in range(0, len(order), _CHUNK):
        part = order[at : at + _CHUNK]
        part = part[part % width == 0] // width
        suffixes[done : done + len(part)] = part
        done += len(part)
    return suffixes


def _shift(largest: int, count: int) -> int:
    """The smallest shift that limits the first-token table to 2**18 entries and to a quarter of the suffixes."""
    shift = 0
    while (largest >> shift) + 1 > max(1, min(_MAX_BUCKETS, count // 4)):
        shift += 1
    return shift


def _starts(tokens: Tokens, largest: int, shift: int) -> npt.NDArray[np.uint32]:
    """uint32[(largest >> shift) + 2]: how many tokens >> shift are less than b, for each b."""
    counts = np.bincount(tokens[tokens != END] >> shift, minlength=(largest >> shift) + 1)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)


def _minima(suffixes: npt.NDArray[np.uint32]) -> list[npt.NDArray[np.uint32]]:
    """Minima of blocks of the suffixes, minima of blocks of these, and so on, until at most _BLOCK are left."""
    levels, entries = [], suffixes
    while len(entries) > _BLOCK:
        entries = np.minimum.reduceat(entries, np.arange(0, len(entries), _BLOCK))
        levels.append(entries)
    return levels


def _write(path: Path, tokens: Tokens, suffixes: npt.NDArray[np.uint32], texts: int, tokenizer: int) -> None:
    largest = int(tokens.max())
    shift = _shift(largest, len(suffixes))
    with open(path, "wb") as file:
        file.write(bytes(_ALIGN))
        crc = 0
        for section in (tokens, suffixes, _starts(tokens, largest, shift), *_minima(suffixes)):
            data = section.astype(section.dtype.newbyteorder("<"), copy=False).data.cast("B")
            for part in (data, bytes(-len(data) % _ALIGN)):
                crc = zlib.crc32(part, crc)
                file.write(part)
        sizes = len(tokens), texts, largest, shift
        header = _HEADER.pack(_MAGIC, _VERSION, _ORDER, file.tell(), tokenizer, *sizes, crc, 0)[:-4]
        file.seek(0)
        file.write(header + struct.pack("<I", zlib.crc32(header)))


# ---- reading corpora


def _read_header(path: Path) -> dict[str, Any]:
    name = os.fspath(path)
    with open(path, "rb") as file:
        data = file.read(_HEADER.size)
        size = file.seek(0, os.SEEK_END)
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError(f"{name} is no corpus: name a file that build_corpus wrote")
    fields = ["magic", "version", "order", "bytes", "tokenizer"]
    fields += ["size", "texts", "largest", "shift", "body_crc", "header_crc"]
    header = dict(zip(fields, _HEADER.unpack(data), strict=True))
    if header["version"] != _VERSION or header["order"] != _ORDER:
        raise ValueError(f"{name} is a corpus of another version of sam_core: build it again")
    if header["header_crc"] != zlib.crc32(data[:-4]):
        raise ValueError(f"{name} is a corpus with a damaged header: build it again")
    if header["bytes"] != size:
        raise ValueError(f"{name} is a corpus that was cut short or added to: copy or build it again")
    sound = 0 < header["texts"] < header["size"] and header["largest"] <= MAX_TOKEN and header["shift"] <= 31
    if not sound or _layout(header)[1] != size:
        raise ValueError(f"{name} is a corpus with impossible sizes: build it again")
    return header


def _body_crc(path: Path) -> int:
    """CRC-32 of what follows the header."""
    crc = 0
    with open(path, "rb") as file:
        file.seek(_ALIGN)
        while part := file.read(_CHUNK):
            crc = zlib.crc32(part, crc)
    return crc


def _layout(header: dict[str, Any]) -> tuple[list[tuple[int, int]], int]:
    """Offset and entries of each section, and the bytes of the file."""
    count = header["size"] - header["texts"]
    sizes = [header["size"], count, (header["largest"] >> header["shift"]) + 2]
    while count > _BLOCK:
        count = -(-count // _BLOCK)
        sizes.append(count)
    sections, offset = [], _ALIGN
    for entries in sizes:
        sections.append((offset, entries))
        offset += -(-4 * entries // _ALIGN) * _ALIGN
    return sections, offset


def _sections(path: Path, header: dict[str, Any]) -> tuple[Any, Any]:
    """The file's tokens and suffixes, mapped."""
    (tokens, size), (suffixes, count), *_ = _layout(header)[0]
    return np.memmap(path, "<i4", "r", tokens, (size,)), np.memmap(path, "<u4", "r", suffixes, (count,))
