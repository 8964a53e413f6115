# SPDX-License-Identifier: Apache-2.0
"""Checks of stop strings in vLLM's front end, without engines: an answer with several tokens per step must end like one
with one token per step.

The tokenizer's words are one to four letters of a three-letter alphabet, and two halves of a letter, so stop strings
begin and end anywhere in a token and several often end in one step.
"""

import itertools
import random
from unittest import mock

LETTERS = "abc"
VOCAB = 64
EOS = VOCAB - 1
STOPS = (["ab"], ["é"], ["cabb", "bc"], ["bb", "b", "aé"], ["ccc", "a"], ["bacab"])


def tokenizer():
    """A fast tokenizer of VOCAB tokens that needs no files."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = ("".join(letters) for n in range(1, 5) for letters in itertools.product(LETTERS, repeat=n))
    halves = ("Ã", "©")  # of é, as byte-level tokenizers write bytes
    words = {word: i for i, word in enumerate([*halves, *itertools.islice(words, VOCAB - 3), "<end>"])}
    model = Tokenizer(models.WordLevel(words, unk_token="a"))
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>", clean_up_tokenization_spaces=False)


def rows(start, tokens):
    """Log-probabilities of a step's tokens, as sent by the engine's core."""
    import numpy as np
    from vllm.v1.outputs import LogprobsLists

    places = range(start, start + len(tokens))
    parts = [[token, (token + 1) % VOCAB] for token in tokens], [[-0.25 * at, -9.0] for at in places], [*places]
    old = "rows_per_request" in LogprobsLists._fields  # 0.11
    return LogprobsLists(*(parts if old else map(np.array, parts)))


def answer(tokens, sizes, end, experts, kind, interval, **sampling):
    """What a client receives of an answer with `sizes` tokens per step, and what vLLM counts.

    end: None, or the reason with which the engine's core ends the answer at its last token.
    """
    import msgspec
    import numpy as np
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.metrics.stats import IterationStats

    fields = {field.name: field.required for field in msgspec.structs.fields(EngineCoreRequest)}
    given = {"request_id": "r", "external_req_id": "r", "prompt_token_ids": [2, 3, 4], "arrival_time": 0.0}
    given["sampling_params"] = SamplingParams(logprobs=1, output_kind=RequestOutputKind[kind], **sampling)
    request = EngineCoreRequest(**{name: given.get(name) for name in fields if fields[name] or name in given})
    processor = OutputProcessor(tokenizer(), log_stats=True)
    processor.stream_interval = interval
    processor.add_request(request, None)
    stats, received, aborted, at = IterationStats(), [], [], 0
    for size in sizes:
        step, reason = tokens[at : at + size], end if at + size == len(tokens) else None
        output = EngineCoreOutput("r", list(step), new_logprobs=rows(at, step), finish_reason=reason)
        if experts:
            output.routed_experts = np.array([[[at + i]] for i in range(size)])
        done = processor.process_outputs([output], 1.0, stats)
        received += done.request_outputs
        aborted += done.reqs_to_abort
        at += size
    outputs = [output.outputs[0] for output in received]
    if not outputs:
        return None
    whole = outputs if kind == "DELTA" else outputs[-1:]
    return {
        "text": "".join(output.text for output in whole),
        "tokens": [token for output in whole for token in output.token_ids],
        "logprobs": [
            [(token, value.logprob, value.rank) for token, value in position.items()]
            for output in whole
            for position in output.logprobs
        ],
        "cumulative": outputs[-1].cumulative_logprob,
        "reasons": (outputs[-1].finish_reason, outputs[-1].stop_reason),
        "experts": None if not experts or not received[-1].finished else outputs[-1].routed_experts.tolist(),
        "counted": stats.num_generation_tokens,
        "finished": [ended.num_generation_tokens for ended in stats.finished_requests],
    }, aborted


def compare(rng, experts):
    """Compare a random answer in steps of several tokens with steps of one. Return whether a stop string cut a step."""
    from vllm.v1.engine import FinishReason

    tokens = [rng.randrange(EOS) for _ in range(rng.randrange(2, 30))]
    end = rng.choice([None, FinishReason.LENGTH, FinishReason.STOP])
    if end == FinishReason.STOP:
        tokens[-1] = EOS
    sizes = []
    while sum(sizes) < len(tokens):
        sizes.append(min(rng.randrange(1, 6), len(tokens) - sum(sizes)))
    asked = {
        "stop": rng.choice(STOPS),
        "include_stop_str_in_output": rng.random() < 0.5,
        "min_tokens": rng.choice([0, 0, 3, 9]),
        "max_tokens": 30,
        "kind": rng.choice(["DELTA", "CUMULATIVE", "FINAL_ONLY"]),
        "interval": rng.choice([1, 1, 4]),
    }
    one, several = (answer(tokens, steps, end, experts, **asked) for steps in ([1] * len(tokens), sizes))
    if one is None or not one[0]["finished"]:  # not ended, so a client may have received less of it
        assert several is None or not several[0]["finished"], (asked, one, several)
        return False
    assert several is not None and several[0] == one[0], (asked, tokens, sizes, one, several)
    kept, stopped = one[0]["counted"], isinstance(one[0]["reasons"][1], str)
    ended_by_core = end is not None and kept > len(tokens) - sizes[-1]
    assert several[1] == (["r"] if stopped and not ended_by_core else []), (asked, several)
    return kept not in itertools.accumulate(sizes)


def many(experts=False):
    rng = random.Random(0)
    cut = sum(compare(rng, experts) for _ in range(500))
    assert cut > 70, f"{cut} steps were cut: the check shows little"


check_steps_of_several_tokens_end_at_the_stop_string = many


def check_the_slow_detokenizer_ends_there_as_well():
    from vllm.v1.engine import detokenizer

    with mock.patch.object(detokenizer, "USE_FAST_DETOKENIZER", False):
        many()


def check_experts_of_dropped_tokens_are_dropped():
    from vllm.v1.engine import EngineCoreOutput

    if "routed_experts" in EngineCoreOutput.__struct_fields__:  # 0.11 records none
        many(experts=True)
