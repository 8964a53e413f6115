# SPDX-License-Identifier: Apache-2.0
"""Different sampling parameters on the second runner: each answer is that of its request alone."""

import os
import random

import pytest
import request_table
from engine_checks import settled, speculated
from parameters import KINDS, requests, same_log_probabilities
from tiny_qwen3 import VOCAB
from vllm.sampling_params import RequestOutputKind

ALL = (*KINDS, "flat_logprobs", "thinking_token_budget", "repetition_detection")
FEW = ["all", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ALL)]
STOP = {"detokenize": True, "temperature": 1.0, "stop": "a string of the answer takes its place"}
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
    "detokenize": {"detokenize": True},
    "skip_special_tokens": {"detokenize": True, "ignore_eos": False, "skip_special_tokens": False},
    "spaces_between_special_tokens": {"detokenize": True, "spaces_between_special_tokens": False},
    "stop": STOP,
    "include_stop_str_in_output": STOP | {"include_stop_str_in_output": True},
    "output_kind": STOP | {"output_kind": RequestOutputKind.DELTA},
    "stream_interval": {"detokenize": True, "output_kind": RequestOutputKind.DELTA, "stream_interval": 7},
}
"""Parameters that are not in ALL, with arguments that set them."""


def log_probabilities(output):
    """Of an answer and its prompt; see same_log_probabilities."""
    return [
        part and [position and {token: own.logprob for token, own in position.items()} for position in part]
        for part in (output.outputs[0].logprobs, output.prompt_logprobs)
    ]


@pytest.mark.parametrize("kind", FEW)
def test_answers_are_those_of_the_requests_alone(plain, synchronous, asynchronous, kind):
    prompts, lengths, each = requests(kind, ALL, num=7, longest=40, temperature=0.7)
    alone = []
    for prompt, length, settings in zip(prompts, lengths, each, strict=True):
        alone.append((*plain.run([prompt], length, each=[settings]), log_probabilities(plain.outputs[0])))
    answers, expected = zip(*alone, strict=True)
    for engine in (plain, synchronous, asynchronous):
        assert engine.run(prompts, lengths, each=each, stagger=2) == list(answers)
        for output, theirs in zip(engine.outputs, expected, strict=True):
            same_log_probabilities(log_probabilities(output), theirs)
    speculated(synchronous)
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
    if "stop" in OTHERS[name]:
        for (_, settings), (_, text, *_) in zip(asked, expected, strict=True):
            settings["stop"] = late(text)
        expected = results(plain, asked)
        assert all(reason == "stop" for *_, reason, _ in expected)
    synchronous.run([prompt], 60)  # whose answer they draft from
    synchronous.log.path, synchronous.log._rows = os.devnull, []
    assert results(synchronous, asked) == expected
    synchronous.rows, synchronous.log.path = synchronous.log._rows, None
    speculated(synchronous)
    settled(synchronous)


def test_every_parameter_has_a_row():
    request_table.every_field_has_one_row()


def late(text):
    """Three characters that are first there behind two thirds of a text."""
    return next(text[at : at + 3] for at in range(len(text) * 2 // 3, len(text)) if text.index(text[at : at + 3]) == at)


def results(engine, asked):
    """Token ids, texts and ends of all sequences."""
    from vllm import SamplingParams

    for i, (prompt, arguments) in enumerate(asked):
        shape = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "detokenize": False} | arguments
        engine.engine.add_request(str(i), {"prompt_token_ids": prompt}, SamplingParams(**shape))
    done, ends = {}, {}
    while engine.engine.has_unfinished_requests():
        for output in engine.engine.step():
            in_parts = asked[int(output.request_id)][1].get("output_kind") == RequestOutputKind.DELTA
            for part in output.outputs:
                key = output.request_id, part.index
                tokens, text = done.get(key, ([], "")) if in_parts else ([], "")
                done[key] = tokens + list(part.token_ids), text + part.text
                ends[key] = part.finish_reason, part.stop_reason
    return [(*done[key], *ends[key]) for key in sorted(done)]
