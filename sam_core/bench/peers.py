# SPDX-License-Identifier: Apache-2.0
"""Peers, each as a drafter for the replay and as a batch of rows for the timings.

PythonSam is the article's automaton as one writes it in Python. The n-gram proposer is vLLM's own file from the pinned
source distribution; arctic-inference's suffix trees are compiled from its source distribution. Both distributions are
checked by their SHA-256 and what is taken from them is kept in .cache/peers.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import types
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "peers"
PIN_SET = "vllm-0.23"
ARCTIC_VERSION = "0.3.0"
ARCTIC_SHA256 = "7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36"
DEPTH = 24  # vLLM's default depth of arctic's trees
MIN_N, MAX_N = 2, 5  # of vLLM's n-grams
MODEL_LEN = 65_536

os.environ["NUMBA_NUM_THREADS"] = "1"  # vLLM sets the number of threads before every batch


class NotAvailable(Exception):
    """Why a peer cannot be run here, in one sentence."""


# ---- the article's automaton in Python ------------------------------------------------------------------------------


class PythonSam:
    """A suffix automaton whose states are dicts; a draft copies what followed the first occurrence."""

    def __init__(self):
        self.next = [{}]
        self.link = [-1]
        self.length = [0]
        self.first = [0]  # min_endpos: where the state's strings ended first
        self.last = 0
        self.tokens = []

    def append(self, token):
        self.tokens.append(token)
        state, at = len(self.next), self.last
        self.next.append({})
        self.length.append(len(self.tokens))
        self.first.append(len(self.tokens))
        self.link.append(0)
        self.last = state
        while at >= 0 and token not in self.next[at]:
            self.next[at][token] = state
            at = self.link[at]
        if at < 0:
            return
        old = self.next[at][token]
        if self.length[old] == self.length[at] + 1:
            self.link[state] = old
            return
        clone = len(self.next)
        self.next.append(self.next[old].copy())
        self.length.append(self.length[at] + 1)
        self.first.append(self.first[old])
        self.link.append(self.link[old])
        while at >= 0 and self.next[at].get(token) == old:
            self.next[at][token] = clone
            at = self.link[at]
        self.link[old] = self.link[state] = clone

    def draft(self, k):
        state = self.link[self.last]
        return self.tokens[self.first[state] : self.first[state] + k] if state > 0 else []


class PythonDrafter:
    """PythonSam in the replay; it has no groups."""

    def __init__(self):
        self.texts = {}

    def start(self, request, prompt_ids, group):
        self.texts[request] = PythonSam()
        self.append(request, prompt_ids)

    def append(self, request, tokens):
        add = self.texts[request].append
        for token in tokens:
            add(token)

    def propose(self, request, k):
        return self.texts[request].draft(k)

    def finish(self, request):
        del self.texts[request]


class PythonBatch:
    """Rows of PythonSam."""

    def __init__(self, table, size):
        self.columns, self.at = table.T.tolist(), size
        self.rows = [PythonSam() for _ in table]
        for sam, row in zip(self.rows, table[:, :size].tolist()):
            for token in row:
                sam.append(token)

    def append(self):
        for sam, token in zip(self.rows, self.columns[self.at]):
            sam.append(token)
        self.at += 1

    def draft(self, k):
        return [sam.draft(k) for sam in self.rows]


# ---- vLLM's n-gram proposer -----------------------------------------------------------------------------------------


def _unpacked(dist, version, sha256, folder):
    """Unpack a source distribution, checked, into a folder; `patchset` has it at hand or downloads it."""
    sys.path.append(str(ROOT / "patches"))
    try:
        from _patchset import sdist
        from _patchset.git import Failure
        from _patchset.pins import Module
    finally:
        sys.path.pop()
    here = types.SimpleNamespace(file=Path(__file__).name)
    try:
        sdist.unpack(sdist.locate(Module(here, dist, version, [dist], sha256, "", "", None), None), Path(folder))
    except Failure as error:
        raise NotAvailable(str(error)) from None


@functools.cache
def ngram_module():
    """vLLM's ngram_proposer.py, imported with the two names that it needs for annotations; raises NotAvailable."""
    if importlib.util.find_spec("numba") is None:
        raise NotAvailable("numba is not installed")
    import tomllib

    pin = tomllib.loads((ROOT / "patches" / PIN_SET / "pins.toml").read_text())["module"]["vllm"]
    file = CACHE / f"vllm-{pin['version']}-ngram_proposer.py"
    if not file.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            _unpacked("vllm", pin["version"], pin["sdist_sha256"], temporary)
            os.replace(Path(temporary) / "vllm" / "v1" / "spec_decode" / "ngram_proposer.py", file)
    needed = {
        "torch": types.SimpleNamespace(Tensor=object),
        "vllm": types.ModuleType("vllm"),
        "vllm.config": types.SimpleNamespace(VllmConfig=object),
    }
    module = types.ModuleType("ngram_proposer")
    before = {name: sys.modules.get(name) for name in needed}
    sys.modules.update(needed)
    try:
        exec(compile(file.read_text(), file, "exec"), module.__dict__)
    finally:
        for name, old in before.items():
            sys.modules.pop(name)
            if old is not None:
                sys.modules[name] = old
    return module


def ngram_proposer(k, rows):
    """A proposer of drafts of k tokens for batches of `rows`; compiles on first use, which takes seconds."""
    config = types.SimpleNamespace(
        speculative_config=types.SimpleNamespace(
            prompt_lookup_min=MIN_N, prompt_lookup_max=MAX_N, num_speculative_tokens=k
        ),
        model_config=types.SimpleNamespace(max_model_len=MODEL_LEN),
        scheduler_config=types.SimpleNamespace(max_num_seqs=max(rows, 1024)),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=1),
    )
    return ngram_module().NgramProposer(config)


class NgramDrafter:
    """vLLM's n-grams in the replay, over the request's own text."""

    def __init__(self):
        ngram_module()
        self.proposers, self.texts = {}, {}

    def start(self, request, prompt_ids, group):
        self.texts[request] = [np.zeros((1, MODEL_LEN), np.int32), np.zeros(1, np.int32)]
        self.append(request, prompt_ids)

    def append(self, request, tokens):
        text, size = self.texts[request]
        text[0, size[0] : size[0] + len(tokens)] = tokens
        size += len(tokens)

    def propose(self, request, k):
        if k not in self.proposers:
            self.proposers[k] = ngram_proposer(k, 1)
        text, size = self.texts[request]
        return self.proposers[k].propose([[0]], size, text)[0] if size[0] else []

    def finish(self, request):
        del self.texts[request]


class NgramBatch:
    """Rows of one call to vLLM's proposer."""

    def __init__(self, table, size, k):
        self.proposer = ngram_proposer(k, len(table))
        self.text = np.zeros((len(table), MODEL_LEN), np.int32)
        self.text[:, :size] = table[:, :size]
        self.sizes = np.full(len(table), size, np.int32)
        self.columns, self.at = np.ascontiguousarray(table.T), size
        self.sampled = [[0]] * len(table)

    def append(self):
        self.text[:, self.at] = self.columns[self.at]
        self.sizes += 1
        self.at += 1

    def draft(self, k):
        return self.proposer.propose(self.sampled, self.sizes, self.text)


# ---- arctic-inference's suffix trees --------------------------------------------------------------------------------


@functools.cache
def arctic():
    """arctic_inference.suffix_decoding.SuffixDecodingCache, compiled on first use; raises NotAvailable."""
    folder = CACHE / f"arctic-inference-{ARCTIC_VERSION}-{sys.implementation.cache_tag}"
    if not folder.is_dir():
        _compile_arctic(folder)
    sys.path.append(str(folder))
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    finally:
        sys.path.pop()
    return SuffixDecodingCache


def _compile_arctic(folder):
    """Compile as its CMake files do in a release build, without the parts that need CUDA or vLLM."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise NotAvailable(f"{compiler} is not on PATH")
    if importlib.util.find_spec("nanobind") is None:
        raise NotAvailable("nanobind is not installed")
    import nanobind

    bind = Path(nanobind.__file__).parent
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        top = Path(temporary) / "source"
        _unpacked("arctic-inference", ARCTIC_VERSION, ARCTIC_SHA256, top)
        source, package = top / "csrc" / "suffix_decoding", Path(temporary) / "made" / "arctic_inference"
        shutil.copytree(top / "arctic_inference" / "suffix_decoding", package / "suffix_decoding")
        shutil.copy(top / "arctic_inference" / "__init__.py", package)
        flags = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing"]
        folders = [sysconfig.get_path("include"), bind / "include", bind / "ext" / "robin_map" / "include"]
        files = [source / "bindings.cc", source / "suffix_tree.cc", bind / "src" / "nb_combined.cpp"]
        command = [compiler, *flags, *(f"-I{path}" for path in folders), *files]
        command += ["-o", package / "suffix_decoding" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NotAvailable(f"{compiler} does not compile it: {done.stderr.strip().splitlines()[-1]}")
        os.replace(package.parent, folder)


class ArcticDrafter:
    """arctic-inference in the replay without its limits on the length and the probability of a draft."""

    def __init__(self):
        self.cache = arctic()
        self.depth = 64
        self.texts, self.groups = {}, {}

    def start(self, request, prompt_ids, group):
        if group not in self.groups:
            self.groups[group] = self.cache(self.depth, 0 if group is None else -1)
        prompt = np.array(prompt_ids, np.int32)
        self.groups[group].start_request(request, prompt)
        text = np.empty(MODEL_LEN, np.int32)
        text[: len(prompt)] = prompt
        self.texts[request] = [self.groups[group], text, len(prompt)]

    def append(self, request, tokens):
        trees, text, size = self.texts[request]
        text[size : size + len(tokens)] = tokens
        trees.add_active_response(request, text[size : size + len(tokens)])
        self.texts[request][2] += len(tokens)

    def _draft(self, request, k, tree):
        trees, text, size = self.texts[request]
        return trees.speculate(request, text[max(size - self.depth, 0) : size], k, 1.0, 1e6, 0.0, tree)

    def propose(self, request, k):
        return self._draft(request, k, False).token_ids

    def propose_tree(self, request, n):
        draft = self._draft(request, n, True)
        return draft.token_ids, draft.parents

    def finish(self, request):
        self.texts.pop(request)[0].stop_request(request)

    def drop(self, group):
        del self.groups[group]


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
        """Of the trees of the requests, and of the tree that they share."""
        local = sum(tree.estimate_memory() for tree in self.trees._local_trees.values())
        return local, self.trees._global_tree.estimate_memory()
