# SPDX-License-Identifier: Apache-2.0
"""Where the worker takes an answer to end is where vLLM's scheduler ends it."""

import random

from sam_core.engines.vllm.answers import stop_tokens, tokens_of_answer
from vllm import SamplingParams
from vllm.sampling_params import RepetitionDetectionParams
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.request import Request

EOS = 5


def random_params(rng):
    params = SamplingParams(
        max_tokens=rng.randint(1, 12),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.choice([None, [rng.randrange(EOS)]]),
        repetition_detection=rng.choice([None, RepetitionDetectionParams(2, 1, 3)]),
    )
    params.min_tokens = rng.choice([0, rng.randint(0, params.max_tokens)])
    params.update_from_generation_config(rng.choice([{}, {"eos_token_id": [EOS - 1, EOS]}]), rng.choice([None, EOS]))
    return params


def test_an_answer_ends_where_the_scheduler_ends_it():
    """Its steps sample 1 to 4 tokens, the last of them often beyond the end."""
    rng, cut_short = random.Random(0), 0
    for _ in range(5000):
        params, max_model_len, prompt = random_params(rng), rng.randint(4, 20), [1] * rng.randint(1, 3)
        request, answer, ended = Request("0", prompt, params, None), [], False
        while not ended and request.num_tokens < max_model_len:
            sampled = [rng.randrange(EOS + 1) for _ in range(rng.randint(1, 4))]
            expected = []
            for token in sampled:
                if not ended and request.num_tokens < max_model_len:
                    request.append_output_token_ids(token)
                    expected.append(token)
                    ended = check_stop(request, max_model_len)
            assert (
                tokens_of_answer(sampled, params, stop_tokens(params), answer, max_model_len - len(prompt + answer))
                == expected
            )
            answer += expected
            cut_short += len(expected) < len(sampled)
        if ended:
            assert (
                tokens_of_answer([1, 2], params, stop_tokens(params), answer, max_model_len - len(prompt + answer))
                == []
            )
    assert cut_short > 1000
