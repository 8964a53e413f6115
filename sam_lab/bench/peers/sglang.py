# SPDX-License-Identifier: Apache-2.0
"""SGLang's n-gram cache: its trie and its binding, compiled from its source distribution without the parts for GPUs.

SGLang calls it through PyTorch tensors; here the same functions get NumPy arrays, which costs less. 0.5.10.post1 is the
last release with a source distribution.
"""

import functools
import os
from typing import Any

import numpy as np

from sam_lab.workers import finished

from .source import MODEL_LEN, build, compile_cpp, need

VERSION = "0.5.10.post1"
SHA256 = "01f7adfe7cde85b238fb0e1bae4b31d494e19d1471cf35ff3c5489a02f9d2263"
DEPTH = 18  # the defaults of SGLang's options: tokens of a path,
BREADTH = 10  # and most children of a node in a draft
NODES = 10_000_000
"""Number of a trie's nodes, SGLang's default; a fifth of this number if a trie holds one group or request at a time."""


@functools.cache
def corpus_class():
    """SGLang's trie class, compiled on first use.

    Its arguments: nodes, depth, minimum breadth, maximum breadth, tokens, order.
    """
    need("tvm_ffi")
    folder = build("sglang", VERSION, SHA256, _make)
    import tvm_ffi

    tvm_ffi.load_module(str(folder / "ngram_corpus.so")).register_once()

    @tvm_ffi.register_object("sgl.NgramCorpus")
    class NgramCorpus(tvm_ffi.Object):
        __slots__ = ("__dict__",)

        def __init__(self, *options):
            self.__ffi_init__(*options)

    return NgramCorpus


def _make(source, target):
    package = need("tvm_ffi")
    kernels = source / "sglang" / "jit_kernel"
    names = ("result", "trie", "ngram", "ngram_corpus_ffi")
    files = [kernels / "csrc" / "ngram_corpus" / f"{name}.cpp" for name in names]
    folders = [kernels / "include", package / "include"]
    library = package / "lib" / "libtvm_ffi.so"
    # SGLang has <cstddef> from the file before.
    compile_cpp(files, folders, target / "ngram_corpus.so", library, "-include", "cstddef")


class Trie:
    """One trie that drafts trees of n tokens; a chain where the breadth is 1."""

    def __init__(self, nodes, n, breadth=BREADTH):
        self.corpus = corpus_class()(nodes, DEPTH, 1, breadth, n + 1, 0)  # its first token is the context's last
        self.width = n + 1
        self.tokens, self.masks = np.empty(0, np.int32), np.empty(0, np.uint8)

    def put(self, rows):
        """Hand int32 rows to the thread that inserts them."""
        self.corpus.async_insert(np.concatenate(rows), _offsets(rows))

    def get(self, rows):
        """Drafts for int32 contexts: int32[rows, n + 1] tokens, and which of them are on the path to which."""
        self.corpus.synchronize()
        count, width = len(rows), self.width
        if len(self.tokens) != count * width:
            self.tokens, self.masks = np.empty(count * width, np.int32), np.empty(count * width**2, np.uint8)
        self.corpus.batch_match(np.concatenate(rows), _offsets(rows), self.tokens, self.masks)
        return self.tokens.reshape(count, width), self.masks.reshape(count, width, width)


def _offsets(rows):
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


class SglangDrafter:
    """The trie in the replay, with prompts, which SGLang leaves out; private: emptied after each request or group."""

    def __init__(self, k, private):
        corpus_class()
        self.n, self.private = k, private
        self.trie: Any = None
        self.texts = {}

    def start(self, request, prompt_ids, group):
        if self.trie is None:
            self.trie = Trie(NODES // 5 if self.private else NODES, self.n, breadth=1)
        self.texts[request] = [np.empty(MODEL_LEN, np.int32), 0, group]
        self.append_many([request], [prompt_ids])

    def append_many(self, requests, rows):
        ends = []
        for request, tokens in zip(requests, rows, strict=True):
            text, size, _ = entry = self.texts[request]
            entry[1] = end = size + len(tokens)
            text[size:end] = tokens
            ends.append(text[max(end - max(DEPTH, len(tokens)), 0) : end])
        self.trie.put(ends)

    def _drafts(self, requests):
        """(tokens, parents) for each request, parents first, -1 the end of the text."""
        entries = [self.texts[request] for request in requests]
        tokens, masks = self.trie.get([text[max(size - DEPTH, 0) : size] for text, size, _ in entries])
        for row, mask in zip(tokens.tolist(), masks, strict=True):
            depths = mask.sum(1).tolist()  # 1: the end of the text
            count = len(row)
            while count > 1 and row[count - 1] == 0 and depths[count - 1] == 2:
                count -= 1  # zeros fill it up
            yield row[1:count], [int(np.flatnonzero(mask[at])[-2]) - 1 for at in range(1, count)]

    def propose_many(self, requests, k):
        return [longest_path(*draft) for draft in self._drafts(requests)]

    def finish(self, request):
        if self.texts.pop(request)[2] is None:
            self.drop(None)

    def drop(self, group):
        if self.private:
            self.trie.corpus.synchronize()  # or what the thread has yet to insert comes after
            self.trie.corpus.reset()


def longest_path(tokens, parents):
    """The tokens from the end of the text to the last of the deepest nodes; nodes come by depth."""
    path, at = [], len(tokens) - 1
    while at >= 0:
        path.append(tokens[at])
        at = parents[at]
    return path[::-1]


class SglangBatch:
    """Rows of one trie with SGLang's default options, called as SGLang calls it."""

    def __init__(self, table, size, k=3):
        self.table, self.at = table, size
        self.trie = Trie(min(table.size * DEPTH, 10_000_000), k)
        self.trie.put(list(table[:, :size]))
        self.trie.corpus.synchronize()

    def _ends(self):
        return [text[max(self.at - DEPTH, 0) : self.at] for text in self.table]

    def append(self):
        self.at += 1
        self.trie.put(self._ends())
        self.trie.corpus.synchronize()  # SGLang waits at its next step

    def draft(self, k):
        return self.trie.get(self._ends())[0]


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(table):
    """Bytes by which the resident memory of a new process grows for the trie of int32[rows, tokens].

    Its nodes are allocated beforehand; there are as many as the text can need.
    """
    ((_, future),) = finished(_growth, [(table,)], 1)
    return future.result()


def _growth(table):
    corpus_class()
    before = _resident()
    batch = SglangBatch(table, table.shape[1])
    growth = _resident() - before
    del batch
    return growth
