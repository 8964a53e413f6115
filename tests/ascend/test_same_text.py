# SPDX-License-Identifier: Apache-2.0
"""Seeded sampling on the real runner: at temperature 1 the text is the same with and without drafts, token for
token."""

import pytest
from ascend_engine import OLD, Engine
from engine_checks import speculated
from started import started

K = 3


drafting = started(
    Engine,
    scope="module",
    sam={"verify": "seeded", "threshold": 6, "min_prob": 0},
    k=4,
    max_model_len=256,
    max_num_seqs=16,
    num_gpu_blocks_override=8,
    enable_prefix_caching=False,
)
"""Drafts of 4 tokens in a tight KV cache: 8 blocks, so that requests are preempted."""


auto_in_graphs = started(
    Engine,
    scope="module",
    sam={"switch": "auto", "verify": "seeded"},
    k=K,
    max_model_len=256,
    max_num_seqs=16,
    compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8, 16, 32, 48]},
)
"""Gives all requests of a step 3 draft tokens or none."""


@pytest.fixture(scope="module")
def requests(prompts):
    """12 prompts, four of them twice, with the lengths and sampling of their answers; one is greedy."""
    many = [prompts[i] for i in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7)]
    limits = ({}, {"top_p": 0.8}, {"top_k": 9})
    each = [{"temperature": 1.0, "seed": 2**40 + i, **limits[i % 3]} for i in range(12)]
    each[5] = {"temperature": 0.0}
    return many, [150 - 9 * i for i in range(12)], each


def test_seeds_of_requests_have_no_effect(plain, sam, prompts):
    """Where drafts are verified by rejection sampling: those of a second answer may depend on the seed of the first."""
    answers = [engine.run([prompts[0]] * 8, 1, temperature=1.0, seed=5) for engine in (plain, sam)]
    assert [len(set(map(tuple, several))) > 1 for several in answers] == [False, True], answers


def test_text_is_the_same_with_and_without_drafts(without, drafting, requests):
    many, lengths, each = requests
    expected = without.run(many, lengths, each=each)
    assert drafting.run(many, lengths, each=each) == expected
    speculated(drafting)
    assert drafting.preemptions > 0 and drafting.drafter()["transitions"] > 0
    assert drafting.run(many, lengths, stagger=7, each=each) == expected
    speculated(drafting)


@pytest.mark.skipif(OLD, reason="with 0.11 an engine runs eagerly")
def test_text_is_the_same_with_padded_drafts_in_graphs(without, graphs, requests):
    many, lengths, each = requests
    before = graphs.drafter()
    assert graphs.run(many, lengths, each=each) == without.run(many, lengths, each=each)
    speculated(graphs)
    assert graphs.drafter()["padding"] > before["padding"]


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="with 0.11 an engine runs eagerly")
def test_text_is_the_same_whatever_auto_decides_in_graphs(without, auto_in_graphs, requests):
    """Three runs. The test before has drafts in graphs, test_schedules.py has what `auto` decides."""
    many, lengths, each = requests
    auto_in_graphs.steps()
    expected, drafted, accepted = without.run(many, lengths, each=each), 0, 0
    for stagger in (0, 7, 1):
        assert auto_in_graphs.run(many, lengths, stagger=stagger, each=each) == expected
        drafted, accepted = drafted + auto_in_graphs.count("drafted"), accepted + auto_in_graphs.count("accepted")
    assert drafted > 0 and accepted > 0, "nothing was drafted or accepted: the test shows nothing"
    counters = auto_in_graphs.drafter()
    assert 0 < counters["steps_on"] < counters["steps"] and counters["padding"] > 0
    steps, _ = auto_in_graphs.steps()
    decoding = [step for step in steps if set(step.lengths) <= {1, K + 1}]
    assert len(decoding) > 0.8 * len(steps)
    assert {(step.mode, *step.lengths) for step in decoding} == {("FULL", 1), ("FULL", K + 1)}
