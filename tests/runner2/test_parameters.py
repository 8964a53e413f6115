# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters beside each other on the second runner: each answer is that of its request alone."""

import functools
import random

import pytest
import request_table
from engine_checks import settled, speculated
from parameters import KINDS, NOT_WITH_DRAFTS, Alone
from tiny_qwen3 import VOCAB

QUICK = {"all", "min_p", "logit_bias"}
REFUSED = "logprob_token_ids"
ALL = [kind for kind in (*KINDS, *NOT_WITH_DRAFTS) if kind != REFUSED]
FEW = [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in (*ALL, "all")]
OTHERS = {
    "n": {"n": 2, "temperature": 1.0},
    "temperature": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "seed": {"temperature": 0.7, "seed": 7},
    "ignore_eos": {"ignore_eos": False},
    "max_tokens": {"max_tokens": 33},
    "skip_reading_prefix_cache": {"skip_reading_prefix_cache": True},
    "extra_args": {"extra_args": {"sam_group": "x"}},
}
"""Parameters that are no kind of `parameters.requests`, with arguments that set them."""


@pytest.fixture(scope="module")
def check():
    return functools.partial(Alone().check, kinds=ALL)


@pytest.mark.parametrize("kind", FEW)
def test_answers_are_those_of_the_requests_alone(plain, synchronous, check, kind):
    check([plain, synchronous], plain, kind, seed=1, stagger=2, few=True, temperature=0.7)
    speculated(synchronous)


@pytest.mark.parametrize("kind", FEW)
def test_asynchronous_answers_are_those_of_the_requests_alone(plain, asynchronous, check, kind):
    check([asynchronous], plain, kind, seed=1, stagger=2, few=True, temperature=0.7)
    speculated(asynchronous)


def test_log_probabilities_of_chosen_tokens_are_refused(asynchronous):
    with pytest.raises(ValueError, match="logprob_token_ids is not returned for verified drafts"):
        asynchronous.run([[1, 2, 3]], 4, logprob_token_ids=[1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_parameters_are_drafted(plain, synchronous, name):
    """Two requests with each of them, to the same prompt."""
    prompt = [random.Random(name).randrange(VOCAB - 1) for _ in range(6)] * 3
    asked = [(prompt, {"seed": i} | OTHERS[name]) for i in range(2)]
    expected = results(plain, asked)
    synchronous.run([prompt], 60)  # whose answer they draft from
    synchronous.log.path, synchronous.log._rows = "kept in memory", []
    assert results(synchronous, asked) == expected
    synchronous.rows, synchronous.log.path = synchronous.log._rows, None
    speculated(synchronous)
    settled(synchronous)


def test_every_parameter_has_a_row():
    request_table.every_field_has_one_row()


def results(engine, asked):
    """Token ids and ends of all sequences."""
    from vllm import SamplingParams

    for i, (prompt, arguments) in enumerate(asked):
        shape = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "detokenize": False} | arguments
        engine.engine.add_request(str(i), {"prompt_token_ids": prompt}, SamplingParams(**shape))
    done = {}
    while engine.engine.has_unfinished_requests():
        for output in engine.engine.step():
            done |= {
                (output.request_id, part.index): [list(part.token_ids), part.finish_reason, part.stop_reason]
                for part in output.outputs
                if part.finish_reason
            }
    return [sequence for _, sequence in sorted(done.items())]
