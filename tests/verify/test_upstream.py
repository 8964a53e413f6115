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
    of_drafts = batch.draft_rows
    ends = torch.tensor(batch.counts).cumsum(0).to(batch.drafts.dtype)
    drafts, probs, uniform = batch.drafts, batch.probs[of_drafts], batch.uniform[of_drafts]
    behind = batch.probs[~of_drafts]
    bonus = torch.where(batch.is_greedy, behind.argmax(1), (behind / batch.q).argmax(1)).int()[:, None]
    best, size = probs.argmax(1), (len(batch.counts), batch.k + 1)
    theirs, wanted = torch.empty_like(drafts), torch.full(size, -1, dtype=torch.int32)
    upstream["sample_recovered_tokens_pytorch"](
        theirs, ends, drafts, None, probs, batch.q, batch.vocabulary, IS_NGRAM=True
    )
    greedy = batch.counts, batch.k, batch.is_greedy
    upstream["rejection_greedy_sample_pytorch"](wanted, ends, drafts, best, bonus, *greedy)
    uniform = (uniform * (1 - 1e-9)).clamp(min=1e-12)  # upstream also accepts a draw that equals the probability
    random = theirs, uniform, batch.is_greedy
    upstream["rejection_random_sample_pytorch"](
        wanted, ends, drafts, None, probs, bonus, *random, batch.k, batch.vocabulary, IS_NGRAM=True
    )

    draws = verify.Draws(torch.zeros(len(of_drafts), dtype=torch.float64), batch.q)
    draws.uniform[of_drafts] = uniform
    every = batch.probs.argmax(1)
    found = verify.rejection_sample(batch.probs.clone(), drafts, batch.counts, draws, batch.is_greedy, every)
    rest = probs.scatter(1, drafts[:, None].long(), 0)
    owners = verify.per_row(torch.arange(len(batch.counts)), batch.counts)[of_drafts]
    compared = torch.ones(len(batch.counts), dtype=torch.bool)
    compared[owners[rest.amax(1) <= 1e-20]] = False  # nothing is left: there upstream recovers token 0
    assert torch.equal(found[compared], wanted[compared])
