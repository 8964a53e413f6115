# SPDX-License-Identifier: Apache-2.0
"""Tests of seeded sampling on the real runner: at temperature 1, drafts do not change a single token of the text."""

import pytest
from ascend_engine import OLD, Engine
from engine_checks import speculated
from one_text import write_corpus

KNOWN_PROMPT = [5, 44, 17, 60, 2, 31, 9, 52, 23, 38, 11, 47]


@pytest.fixture(scope="module")
def drafting(model, cpu, tmp_path_factory):
    """Yield an engine that drafts 4 tokens, also from a corpus of one answer. The KV cache has 8 blocks, so that
    requests are preempted, and prompts are read in chunks of at most 48 tokens."""
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    write_corpus(path, KNOWN_PROMPT + cpu.run([KNOWN_PROMPT])[0])
    engine = Engine(
        model,
        sam={"verify": "seeded", "threshold": 6, "min_prob": 0, "corpus": str(path)},
        k=4,
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=48,
        num_gpu_blocks_override=8,
        enable_prefix_caching=False,
    )
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def requests(prompts):
    """Return 12 prompts, 4 of which occur twice, and the lengths and sampling parameters of their answers."""
    many = [prompts[i] for i in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7)]
    limits = ({}, {"top_p": 0.8}, {"top_k": 9})
    each = [{"temperature": 1.0, "seed": 2**40 + i, **limits[i % 3]} for i in range(12)]
    each[5] = {"temperature": 0.0}
    return many, [150 - 9 * i for i in range(12)], each


def test_seeds_of_requests_have_no_effect(plain, sam, prompts):
    """Rejection sampling must ignore seeds: drafts for a second answer may depend on the seed of the first answer."""
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


def test_corpus_drafts_for_a_prompt_that_was_never_asked(cpu, drafting):
    before = drafting.drafter()["accepted_corpus"]
    assert drafting.run([KNOWN_PROMPT]) == cpu.run([KNOWN_PROMPT])
    assert drafting.drafter()["accepted_corpus"] - before > 10


def test_neighbour_of_a_request_at_max_model_len_still_drafts(cpu, drafting):
    """A prompt of 254 tokens leaves no room for a draft; the other request in the batch still drafts."""
    prompts = [list(range(8)) * 4, [7] * 254]
    assert drafting.run(prompts, [60, 2]) == cpu.run(prompts, [60, 2])
    speculated(drafting)
