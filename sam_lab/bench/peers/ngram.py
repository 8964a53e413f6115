# SPDX-License-Identifier: Apache-2.0
"""vLLM's n-gram proposer: its own file, from the pinned source distribution."""

import functools
import os
import sys
import tempfile
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np

from sam_lab.replay import OneByOne

from .source import CACHE, MODEL_LEN, ROOT, need, unpack

PIN_SET = "vllm-0.23"
MIN_N, MAX_N = 2, 5

os.environ["NUMBA_NUM_THREADS"] = "1"  # vLLM sets the number of threads before every batch


@functools.cache
def ngram_module():
    """vLLM's ngram_proposer.py, imported with the two names that it needs for annotations; raises LabError."""
    need("numba")
    pin = tomllib.loads((ROOT / "patches" / PIN_SET / "pins.toml").read_text())["module"]["vllm"]
    file = CACHE / f"vllm-{pin['version']}-ngram_proposer.py"
    if not file.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            unpack("vllm", pin["version"], pin["sdist_sha256"], temporary)
            os.replace(Path(temporary) / "vllm" / "v1" / "spec_decode" / "ngram_proposer.py", file)
    needed: dict[str, Any] = {
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


def ngram_proposer(k, rows, shortest=MIN_N, longest=MAX_N):
    """A proposer of drafts of k tokens for batches of `rows`; compiles on first use, which takes seconds."""
    config = types.SimpleNamespace(
        speculative_config=types.SimpleNamespace(
            prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=k
        ),
        model_config=types.SimpleNamespace(max_model_len=MODEL_LEN),
        scheduler_config=types.SimpleNamespace(max_num_seqs=max(rows, 1024)),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=1),
    )
    return ngram_module().NgramProposer(config)


class NgramDrafter(OneByOne):
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

    def __init__(self, table, size, k=3):
        self.proposer = ngram_proposer(k, len(table))
        self.text = np.zeros((len(table), MODEL_LEN), np.int32)
        self.text[:, :size] = table[:, :size]
        self.sizes = np.full(len(table), size, np.int32)
        self.table, self.columns, self.at = table, np.ascontiguousarray(table.T), size
        self.sampled = [[0]] * len(table)

    def append(self):
        self.text[:, self.at] = self.columns[self.at]
        self.sizes += 1
        self.at += 1

    def draft(self, k):
        return self.proposer.propose(self.sampled, self.sizes, self.text)
