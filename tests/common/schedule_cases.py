# SPDX-License-Identifier: Apache-2.0
"""Schedules of one kind each, which random schedules rarely contain so clearly."""

import copy
import itertools

from schedule_draws import THINK, Ask, Schedule


def cases():
    """Lists of schedules by name."""
    setup = {"k": 3, "sam": {"switch": "batch", "threshold": 64, "min_prob": 0, "rule": "blend"}, "policy": "fcfs"}
    setup |= {"blocks": 100, "tokens": 64, "seqs": 8, "long_prefill": 0, "feed_all": True, "drain": True, "many": 64}

    def ask(key, prompt, length, turns=(), embeds=False, **params):
        params = {"temperature": 0.0, "ignore_eos": True, "max_tokens": length} | params
        params |= {"output_kind": "DELTA"} if turns else {}
        return Ask(key, str(key), prompt, params, 0, turns=list(turns), embeds=embeds)

    def with_threshold(threshold):  # with a small one, tokens are read late
        return setup | {"sam": setup["sam"] | {"threshold": threshold}}

    others = [ask(key, [7 + key, 3, 9, 4] * 4, 60) for key in (1, 2)]
    twelve, long = [5, 6, 7, 8] * 3, list(range(1, 41))
    sessions = [ask(3, [11, 5, 6, 8, 11, 5, 6], 20, [(0, [12, 5, 6, 8], 3), (0, [3] * n, 30)]) for n in range(1, 7)]
    sessions += [
        ask(3, twelve, 30, [(40, [at, 2, 3] * 4, 5), (60, twelve, 9)], stop_token_ids=[at * 9]) for at in range(4)
    ]
    embeds = [ask(2, long[:n], 20, embeds=True, **params) for n, params in ((9, {}), (40, {"repetition_penalty": 1.3}))]
    resets = [[(0, at, what)] for what, steps in (("reset", range(5)), ("two resets", (1, 2))) for at in steps]
    again = []
    for at in range(3, 9):
        aborted, named_alike = ask(3, long, 60), ask(4, twelve, 20)
        aborted.abort, named_alike.name, named_alike.at = at, aborted.name, at
        again.append([*others, aborted, named_alike])

    def twice(params_of):
        """Eight requests with different lengths and arrivals, then the same ones with exchanged parameters."""
        waves = []
        for number in range(2):
            waves.append([])
            for at in range(8):
                params, prompt = params_of(at + 3 * number), [at, 9 - at, 3] * 3 + [THINK]
                waves[-1].append(ask(10 * number + at, prompt, 12 + 9 * (at % 4), **params))
                waves[-1][-1].at = 2 * at
        return [Schedule(0, with_threshold(threshold), copy.deepcopy(waves), []) for threshold in (64, 3)]

    asked_for = ({"logprob_token_ids": [3, 40]}, {"logprobs": 2}, {}, {"logprob_token_ids": [7]})
    return {
        "log-probabilities": twice(lambda at: asked_for[at % 4]),
        "grammars": twice(lambda at: {"structured_outputs": f"[a-f]{{{5 + at}}}"} if at % 2 else {}),
        "ids": [Schedule(0, setup, [wave], []) for wave in again],
        "turns": [
            Schedule(0, with_threshold(64 if at // 2 % 2 else 1), [[*others, session]], [])
            for at, session in enumerate(sessions)
        ],
        "embeds": [
            Schedule(0, setup, [[ask(1, twelve, 40, stop_token_ids=[stop])], [last]], [])
            for stop, last in itertools.product((30, 46), embeds)
        ],
        "prompt log-probabilities": [
            Schedule(0, setup | {"tokens": tokens}, [[ask(3, long, 9, prompt_logprobs=2), *others]], events)
            for events, tokens in zip(resets, itertools.cycle([64, 64, 16, 16]), strict=False)
        ],
    }
