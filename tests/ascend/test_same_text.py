# SPDX-License-Identifier: Apache-2.0
"""Seeded sampling on the real runner: at temperature 1 the text is the same with and without drafts, token for token."""

import pytest
from ascend_engine import Engine, speculated


@pytest.fixture(scope="module")
def without(model):
    engine = Engine(model, additional_config={"sam_verify": "seeded"})
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def drafting(model):
    """Drafts of 4 tokens in a tight KV cache: 8 blocks, so that requests are preempted."""
    engine = Engine(
        model,
        sam={"verify": "seeded", "threshold": 6, "min_prob": 0},
        k=4,
        max_model_len=256,
        max_num_seqs=16,
        num_gpu_blocks_override=8,
        enable_prefix_caching=False,
    )
    yield engine
    engine.stop()


def test_text_is_the_same_with_and_without_drafts(without, drafting, prompts):
    many = [prompts[i] for i in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7)]
    lengths = [150 - 9 * i for i in range(12)]
    each = [
        {
            "temperature": 1.0,
            "seed": 2**40 + i,
            **({"top_p": 0.8} if i % 3 == 1 else {"top_k": 9} if i % 3 == 2 else {}),
        }
        for i in range(12)
    ]
    each[5] = {"temperature": 0.0}
    expected = without.run(many, lengths, each=each)
    assert drafting.run(many, lengths, each=each) == expected
    speculated(drafting)
    assert drafting.preemptions > 0 and drafting.drafter()["transitions"] > 0
    assert drafting.run(many, lengths, stagger=7, each=each) == expected
    speculated(drafting)
    siblings = [answer[:60] for answer in without.run([prompts[0]] * 4, 60, each=each[:4])]
    assert len({tuple(answer) for answer in siblings}) == 4


def test_requests_without_a_seed_sample_each_their_own(drafting, prompts):
    answers = drafting.run([prompts[0]] * 6, 40, temperature=1.0)
    assert len({tuple(answer) for answer in answers}) == 6
