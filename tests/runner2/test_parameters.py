# SPDX-License-Identifier: Apache-2.0
"""On the second runner, requests with different sampling parameters are answered as if each ran alone."""

import pytest
import request_table
from engine_checks import speculated
from parameters import KINDS, requests, same_log_probabilities

ALL = (*KINDS, "flat_logprobs", "thinking_token_budget", "repetition_detection", "n", "top_p", "top_k", "ignore_eos")
ALL += ("stop", "skip_special_tokens", "extra_args", "skip_reading_prefix_cache", "stream_interval")
FEW = ["all", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ALL)]


def results(engine):
    """Return the tokens, texts and ends of the answers to each request, and the log-probabilities of its first answer
    and of its prompt.

    Tokens and log-probabilities of an answer that a stop string ends are left out: vLLM before 0.32 returns more.
    """
    ends, logprobs = [], []
    for output in engine.outputs:
        cut = [isinstance(own.stop_reason, str) for own in output.outputs]
        ends.append(
            [
                (own.index, not is_cut and [*own.token_ids], own.text, own.finish_reason, own.stop_reason)
                for own, is_cut in zip(output.outputs, cut, strict=True)
            ]
        )
        parts = (None if cut[0] else output.outputs[0].logprobs, output.prompt_logprobs)
        logprobs.append(
            [part and [at and {token: own.logprob for token, own in at.items()} for at in part] for part in parts]
        )
    return ends, logprobs


@pytest.mark.parametrize("kind", FEW)
def test_answers_are_those_of_the_requests_alone(plain, synchronous, asynchronous, kind):
    prompts, lengths, each = requests(kind, ALL, num=7, longest=40, temperature=0.7)
    alone = []
    for prompt, length, settings in zip(prompts, lengths, each, strict=True):
        plain.run([prompt], length, each=[settings])
        alone.append(results(plain))
    for engine in (plain, synchronous, asynchronous):
        engine.run(prompts, lengths, each=each, stagger=2)
        ends, logprobs = results(engine)
        assert ends == [own for (own,), _ in alone]
        for ours, (_, (theirs,)) in zip(logprobs, alone, strict=True):
            same_log_probabilities(ours, theirs)
    speculated(synchronous)
    speculated(asynchronous)


def test_log_probabilities_of_chosen_tokens_are_refused(asynchronous):
    with pytest.raises(ValueError, match="logprob_token_ids is not returned for verified drafts"):
        asynchronous.run([[1, 2, 3]], 4, logprob_token_ids=[1, 2])


def test_every_parameter_has_a_row():
    request_table.every_field_has_one_row()
