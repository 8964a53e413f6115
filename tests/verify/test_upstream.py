# SPDX-License-Identifier: Apache-2.0
"""The same tokens as vllm-ascend's own loops, read from its source distribution and run without an engine."""

import __future__

import ast
import os
import tarfile
from pathlib import Path

import pytest
import torch
from batches import batches
from hypothesis import given, settings

from sam_core import verify

SDIST = "vllm_ascend-0.11.0.tar.gz"
FILE = "vllm_ascend-0.11.0/vllm_ascend/sample/rejection_sampler.py"


@pytest.fixture(scope="module")
def upstream():
    """The functions of upstream's file by name."""
    folders = [os.environ.get("PATCHSET_SDISTS"), Path(__file__).parents[2] / ".cache" / "sdists"]
    sdist = next((Path(folder, SDIST) for folder in folders if folder and Path(folder, SDIST).is_file()), None)
    if sdist is None:
        pytest.skip(f"{SDIST}, which holds upstream's loops, is in neither $PATCHSET_SDISTS nor .cache/sdists")
    with tarfile.open(sdist) as archive:
        tree = ast.parse(archive.extractfile(FILE).read())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    functions = {"torch": torch}
    exec(compile(tree, FILE, "exec", flags=__future__.annotations.compiler_flag), functions)
    return functions


@settings(max_examples=120, deadline=None)
@given(batch=batches())
def test_tokens_are_upstreams(upstream, batch):
    if sum(batch.counts) == 0:  # an engine then does not verify
        return
    ends, drafts, draft_probs, probs = batch.ends, batch.drafts, batch.draft_probs, batch.target_probs
    ngram, best = draft_probs is None, probs.argmax(1)
    size, bonus = (len(batch.counts), batch.k + 1), batch.bonus.int()  # upstream refuses int64 here
    theirs, wanted = torch.empty_like(drafts), torch.full(size, -1, dtype=torch.int32)
    upstream["sample_recovered_tokens_pytorch"](
        theirs, ends, drafts, draft_probs, probs, batch.q, batch.vocabulary, IS_NGRAM=ngram
    )
    greedy = batch.counts, batch.k, batch.is_greedy
    upstream["rejection_greedy_sample_pytorch"](wanted, ends, drafts, best, bonus, *greedy)
    uniform = (batch.uniform * (1 - 1e-9)).clamp(min=1e-12)  # upstream also accepts a draw that equals the probability
    random = theirs, uniform, batch.is_greedy
    upstream["rejection_random_sample_pytorch"](
        wanted, ends, drafts, draft_probs, probs, bonus, *random, batch.k, batch.vocabulary, IS_NGRAM=ngram
    )

    draws = verify.Draws(uniform, batch.q, None)
    found = verify.rejection_sample(drafts, batch.counts, draft_probs, probs, bonus, batch.is_greedy, draws)
    rest = probs.scatter(1, drafts[:, None].long(), 0) if ngram else (probs - draft_probs).clamp(min=0)
    nothing_left = verify.per_draft(torch.arange(len(batch.counts)), batch.counts)[rest.amax(1) <= 1e-20]
    compared = torch.ones(len(batch.counts), dtype=torch.bool)
    compared[nothing_left] = False  # there upstream recovers token 0
    assert torch.equal(found[compared], wanted[compared])

    values = torch.arange(len(batch.counts)) % 3
    for dtype in (torch.float32, torch.int32):
        theirs = torch.zeros(len(drafts), dtype=dtype)
        upstream["expand_pytorch"](theirs, values.to(dtype), ends, -1, 1, MAX_NUM_TOKENS=32)
        assert torch.equal(verify.per_draft(values.to(dtype), batch.counts), theirs)
