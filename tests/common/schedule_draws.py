# SPDX-License-Identifier: Apache-2.0
"""Schedules of requests (Ask), drawn at random from a seed."""

from __future__ import annotations

import collections
import copy
import itertools
import random
import string
from dataclasses import dataclass, field
from typing import Any

from tiny_qwen3 import VOCAB

EOS = VOCAB - 1
WORDS = [*string.ascii_lowercase, *(a + b for a in "bdfgk" for b in "aeiou"), "xyz", "ab", "cab", "s ", " t", "é"]
WORDS += ["THINK", "STOP"]
WORDS += [f"<{at}>" for at in range(len(WORDS), EOS)] + ["<eos>"]
THINK, STOP = WORDS.index("THINK"), WORDS.index("STOP")
MAX_LEN, BLOCK, MAX_SEQS = 160, 16, 16


@dataclass
class Ask:
    """A request.

    key: its number in the schedule; name: its id, which an earlier request may have had.
    at: arrival, in steps after the beginning of its wave.
    abort: steps between arrival and abort, None: never.
    turns: further inputs of a session: (steps after arrival, token ids, max_tokens).
    embeds: whether the prompt is given as embeddings.
    """

    key: int
    name: str
    prompt: list[int]
    params: dict[str, Any]
    at: int
    priority: int = 0
    abort: int | None = None
    turns: list[tuple[int, list[int], int]] = field(default_factory=list)
    embeds: bool = False

    @property
    def draws(self) -> bool:
        """Whether the answer depends on random numbers."""
        return self.params["temperature"] > 0 and not {"top_k", "top_p"} & self.params.keys()

    def families(self) -> set[str]:
        kinds = {"sessions": self.turns, "embeds": self.embeds, "priorities": self.priority}
        params = self.params.keys() - ({"temperature"} if not self.params["temperature"] else set())
        return params | {kind for kind, is_so in kinds.items() if is_so}


@dataclass
class Schedule:
    """waves: lists of requests; a wave begins when the previous one has ended. events: (wave, step, what)."""

    seed: int
    setup: dict[str, Any]
    waves: list[list[Ask]]
    events: list[tuple[int, int, str]]


def tokens(rng, least, most):
    return sorted(rng.sample(range(EOS), rng.randint(least, most)))


def repetition(longest, count):
    from vllm.sampling_params import RepetitionDetectionParams

    return RepetitionDetectionParams(longest, 1, count)


FAMILIES = {
    "repetition_penalty": lambda rng: {"repetition_penalty": rng.choice([1.02, 1.3])},
    "penalties": lambda rng: rng.choice(
        [{"presence_penalty": 0.5}, {"frequency_penalty": 0.7, "presence_penalty": -0.3}]
    ),
    "temperature": lambda rng: {"temperature": rng.choice([0.5, 1.0])},
    "top_k": lambda rng: {"temperature": 1.0, "top_k": 1},
    "top_p": lambda rng: {"temperature": 1.0, "top_p": 1e-5},
    "seed": lambda rng: {"seed": rng.randrange(1 << 40)},
    "stop": lambda rng: {
        "stop": rng.sample(["a", "fa", "zz", "cab", "bo", "e", "ty", "xy", "gik", "s"], rng.randint(1, 4)),
        "include_stop_str_in_output": rng.random() < 0.5,
    },
    "stop_token_ids": lambda rng: {"stop_token_ids": tokens(rng, 1, 6)},
    "ignore_eos": lambda rng: {"ignore_eos": False},
    "max_tokens": lambda rng: {"max_tokens": None},
    "min_tokens": lambda rng: {"min_tokens": rng.randint(1, 30), "stop_token_ids": tokens(rng, 8, 30)},
    "logprobs": lambda rng: {"logprobs": rng.choice([0, 1, 4])},
    "prompt_logprobs": lambda rng: {"prompt_logprobs": rng.choice([0, 2])},
    "logprob_token_ids": lambda rng: {"logprob_token_ids": tokens(rng, 1, 3)},
    "flat_logprobs": lambda rng: {"logprobs": 2, "flat_logprobs": True},
    "detokenize": lambda rng: {"detokenize": False},
    "skip_special_tokens": lambda rng: {
        "skip_special_tokens": False,
        "spaces_between_special_tokens": rng.random() < 0.5,
        "ignore_eos": False,
    },
    "output_kind": lambda rng: {"output_kind": rng.choice(["DELTA", "FINAL_ONLY"])},
    "n": lambda rng: {"n": rng.randint(2, 3), "temperature": 1.0} | rng.choice([{}, {"top_k": 1}]),  # never greedy
    "structured_outputs": lambda rng: {
        "structured_outputs": rng.choice(["[a-f]{40}", "(ba|de|f){5,30}"]),
        "ignore_eos": rng.random() < 0.3,  # then a grammar ends its answer
    },
    "allowed_token_ids": lambda rng: {"allowed_token_ids": tokens(rng, 20, 45)},
    "bad_words": lambda rng: {"bad_words": rng.sample(WORDS[:50], rng.randint(1, 6))},
    "extra_args": lambda rng: {"extra_args": {"sam_group": rng.choice("xyz")}},
    "skip_reading_prefix_cache": lambda rng: {"skip_reading_prefix_cache": True},
    "thinking_token_budget": lambda rng: {"thinking_token_budget": rng.randint(0, 12)},
    "repetition_detection": lambda rng: {"repetition_detection": repetition(rng.randint(1, 8), rng.randint(3, 6))},
    "routed_experts_prompt_start": lambda rng: {"routed_experts_prompt_start": 2},
    "min_p": lambda rng: {"temperature": 1.0, "min_p": 0.2},
    "logit_bias": lambda rng: {"logit_bias": {3: 2.0}},
}
"""Functions that draw arguments of SamplingParams, by name; `structured_outputs` is a regular expression here."""
REFUSED = {"min_p", "logit_bias", "thinking_token_budget"}
"""Parameters that are refused with speculation in vLLM 0.23."""
ALONE = {"structured_outputs"} | REFUSED
WITH_ALONE = {"logprobs", "seed", "extra_args"}
"""Parameters that a request with one of ALONE may also have."""
NOT_IN_SESSIONS = {"stop", "n", "output_kind", "prompt_logprobs", "max_tokens"} | ALONE
NEED_TEXT = {"stop", "structured_outputs", "bad_words", "skip_special_tokens"}


def draw(seed):
    """The schedule of a seed."""
    rng = random.Random(seed)
    setup = {
        "k": rng.choice([1, 3, 8, 15]),
        "sam": {
            "switch": rng.choice(["batch", "batch", "auto"]),
            "threshold": rng.choice([1, 3, 6, 64]),
            "min_prob": rng.choice([0, 0, 0.1]),
            "rule": rng.choice(["blend", "blend", "newest", "suffix"]),
        },
        "blocks": rng.choice([11, 16, 24, 100]),  # a request of MAX_LEN tokens needs 10
        "tokens": rng.choice([16, 32, 64, 512]),
        "seqs": rng.choice([3, 8, MAX_SEQS]),
        "policy": rng.choice(["fcfs", "priority"]),
        "long_prefill": rng.choice([0, 0, 20]),
        "feed_all": rng.random() < 0.3,
        "drain": rng.random() < 0.5,
        "many": 1 if seed % 4 < 2 else 64,  # requests whose tokens are written together
    }
    shared = [draw_prompt(rng) for _ in range(3)]
    waves, events, keys = [], [], itertools.count()
    for number in range(rng.randint(1, 3)):
        spread, wave = rng.choice([0, 10, 60]), []
        for _ in range(rng.randint(1, 8)):
            ask = draw_ask(rng, next(keys), shared, spread)
            if setup["policy"] == "priority":
                ask.priority = rng.randint(0, 2)
            if rng.random() < 0.3:
                reuse(rng, ask, wave, waves)
            wave.append(ask)
        waves.append(wave)
        for whats in (["reset", "reset", "two resets"], ["pause"]):
            if rng.random() < 0.5:  # at any time, or when the prompt of a request is read
                step = rng.choice([rng.randint(0, 50), rng.choice(wave).at + rng.randint(0, 4)])
                events.append((number, step, rng.choice(whats)))
    setup["blocks"] = max(setup["blocks"], enough_with_sessions(itertools.chain(*waves)))
    return Schedule(seed, setup, waves, events)


def enough_with_sessions(asks):
    """Return enough blocks for the longest request and all sessions: vLLM takes no blocks from a waiting session and
    might deadlock."""
    turns = [[(0, ask.prompt, 20), *ask.turns] for ask in asks if ask.turns]
    longest = [sum(len(prompt) + length for _, prompt, length in each) for each in turns] + [MAX_LEN]
    return sum(-(-length // BLOCK) for length in longest) + 1


def draw_prompt(rng):
    return [rng.randrange(THINK) for _ in range(rng.randint(2, 25))] * rng.choice([1, 1, 2, 3])


def draw_ask(rng, key, shared, spread):
    prompt = rng.choice(shared) if rng.random() < 0.4 else draw_prompt(rng)
    if rng.random() < 0.1:
        prompt = (prompt * MAX_LEN)[: rng.randint(MAX_LEN - 40, MAX_LEN - 1)]
    params = {"temperature": 0.0, "max_tokens": rng.choice([1, 2, 8, 30, 60, 100]), "ignore_eos": True}
    ask = Ask(key, str(key), list(prompt), params, rng.randint(0, spread))
    chosen = {name for name in FAMILIES if rng.random() < 0.09}
    if rng.random() < 0.15:
        at = 0
        for _ in range(rng.randint(1, 4)):
            at += rng.choice([0, 0, 5, 40])
            ask.turns.append((at, [rng.randrange(THINK) for _ in range(rng.randint(1, 20))], rng.choice([1, 2, 5, 20])))
        ask.prompt, params["max_tokens"], params["output_kind"] = prompt[:30], rng.choice([1, 5, 20]), "DELTA"
        chosen -= NOT_IN_SESSIONS
    elif alone := sorted(chosen & ALONE):
        chosen = {alone[0]} | chosen & WITH_ALONE
    elif rng.random() < 0.1:
        ask.embeds = True
        chosen -= {"prompt_logprobs"}
    if chosen & NEED_TEXT:
        chosen -= {"detokenize"}
    if "thinking_token_budget" in chosen:
        ask.prompt = ask.prompt[: MAX_LEN - 40] + [THINK]
    for name in sorted(chosen):
        params |= FAMILIES[name](rng)
    if "min_tokens" in params:  # vLLM never ends an answer that has no room for them
        params["min_tokens"] = min(params["min_tokens"], params["max_tokens"] or MAX_LEN, MAX_LEN - len(ask.prompt))
    if ask.turns:
        params.pop("min_tokens", None)  # a turn may be shorter
    if ask.draws:
        params.setdefault("seed", rng.randrange(1 << 40))
    if rng.random() < 0.15:
        ask.abort = rng.randint(1, 40)
    return ask


def reuse(rng, ask, wave, waves):
    """Give `ask` the name of a request of an earlier wave, or of an aborted request of the same wave."""
    taken = collections.Counter(other.name for other in wave)
    aborted = [other for other in wave if other.abort is not None and taken[other.name] == 1]
    ended = [other for other in itertools.chain(*waves) if not taken[other.name]]
    if aborted and rng.random() < 0.6:
        before = rng.choice(aborted)
        ask.name, ask.at = before.name, before.at + before.abort
    elif ended:
        ask.name = rng.choice(ended).name


def one_by_one(schedule):
    """Return a schedule of the same requests, each run alone and to its end."""
    asks = [copy.deepcopy(ask) for ask in itertools.chain(*schedule.waves)]
    for ask in asks:
        ask.at, ask.abort, ask.turns = 0, None, [(0, *turn[1:]) for turn in ask.turns]
    return Schedule(schedule.seed, {"drain": True}, [[ask] for ask in asks], [])
