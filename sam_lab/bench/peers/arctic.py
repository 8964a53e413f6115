# SPDX-License-Identifier: Apache-2.0
"""arctic-inference's suffix trees, compiled from its source distribution without the parts that need CUDA or vLLM."""

import functools
import shutil
import sysconfig

import numpy as np

from sam_lab.replay import OneByOne

from .source import MODEL_LEN, build, compile_cpp, imported, need

VERSION = "0.3.0"
SHA256 = "7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36"
DEPTH = 24  # vLLM's default depth of the trees


@functools.cache
def arctic():
    """arctic_inference.suffix_decoding.SuffixDecodingCache, compiled on first use; raises LabError."""
    folder = build("arctic-inference", VERSION, SHA256, _make)
    return imported(folder, "arctic_inference.suffix_decoding").SuffixDecodingCache


def _make(top, folder):
    """Compile as its CMake files do in a release build."""
    bind = need("nanobind")
    source, package = top / "csrc" / "suffix_decoding", folder / "arctic_inference"
    shutil.copytree(top / "arctic_inference" / "suffix_decoding", package / "suffix_decoding")
    shutil.copy(top / "arctic_inference" / "__init__.py", package)
    files = [source / "bindings.cc", source / "suffix_tree.cc", bind / "src" / "nb_combined.cpp"]
    target = package / "suffix_decoding" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    compile_cpp(files, [bind / "include", bind / "ext" / "robin_map" / "include"], target)


class ArcticDrafter(OneByOne):
    """arctic-inference in the replay without its limits on the length and the probability of a draft.

    One cache for all requests, as in vLLM; private: one for each group, and none for a request without a group.
    """

    def __init__(self, private):
        self.cache = arctic()
        self.depth, self.private = 64, private
        self.texts, self.caches = {}, {}

    def start(self, request, prompt_ids, group):
        key = group if self.private else None
        if key not in self.caches:
            self.caches[key] = self.cache(self.depth, 0 if self.private and group is None else -1)
        prompt = np.array(prompt_ids, np.int32)
        self.caches[key].start_request(request, prompt)
        text = np.empty(MODEL_LEN, np.int32)
        text[: len(prompt)] = prompt
        self.texts[request] = [self.caches[key], text, len(prompt)]

    def append(self, request, tokens):
        trees, text, size = self.texts[request]
        text[size : size + len(tokens)] = tokens
        trees.add_active_response(request, text[size : size + len(tokens)])
        self.texts[request][2] += len(tokens)

    def propose(self, request, k):
        trees, text, size = self.texts[request]
        return trees.speculate(request, text[max(size - self.depth, 0) : size], k, 1.0, 1e6, 0.0, False).token_ids

    def finish(self, request):
        self.texts.pop(request)[0].stop_request(request)

    def drop(self, group):
        self.caches.pop(group, None)


class ArcticBatch:
    """Rows of one cache with its global tree, called as vLLM calls it, with its default limits."""

    def __init__(self, table, size):
        self.trees = arctic()(DEPTH)
        self.table, self.at = table, size
        for row, text in enumerate(table):
            self.trees.start_request(row, text[:1])
            self.trees.add_active_response(row, text[1:size])

    def append(self):
        for row, text in enumerate(self.table):
            self.trees.add_active_response(row, text[self.at : self.at + 1])
        self.at += 1

    def draft(self, k):
        start = max(self.at - DEPTH, 0)
        speculate = self.trees.speculate
        return [speculate(row, text[start : self.at], k).token_ids for row, text in enumerate(self.table)]

    def bytes(self):
        """Bytes of the requests' own trees, and of the tree that they share."""
        local = sum(tree.estimate_memory() for tree in self.trees._local_trees.values())
        return local, self.trees._global_tree.estimate_memory()
