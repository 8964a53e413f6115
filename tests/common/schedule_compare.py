# SPDX-License-Identifier: Apache-2.0
"""Compare the answers of an engine with sam, and what it indexed of them, with those of a plain engine."""

import collections
import copy

import numpy as np
from schedule_draws import REFUSED
from schedule_engine import Result
from scipy.optimize import linear_sum_assignment


def first_difference(expected, got):
    both = zip(expected, got, strict=False)  # one may be a prefix of the other
    return next((at for at, (one, other) in enumerate(both) if one != other), min(len(expected), len(got)))


def differs(ask, expected, got, verify):
    """Return a sentence about the difference of a request's results, or None."""
    if expected.refused or got.refused:
        if bool(expected.refused) == bool(got.refused) or REFUSED & ask.params.keys():
            return None
        return f"refused only with {'plain' if expected.refused else 'sam'}: {expected.refused or got.refused}"
    if got.aborted:
        expected = cut_as(expected, got)
    if len(expected.answers) != len(got.answers):
        return f"{len(got.answers)} answers, not {len(expected.answers)}"
    if ask.draws and verify == "rejection":
        return None if got.aborted or all(answer.finish for answer in got.answers) else "an answer does not end"
    for mine, theirs in zip(got.answers, expected.answers, strict=True):
        for name in ("tokens", "text"):
            a, b = getattr(theirs, name), getattr(mine, name)
            if a != b:
                at = first_difference(a, b)
                a, b = (f"{text[at : at + 8]!r} of {len(text)}" for text in (a, b))
                return f"{name} differ at {at}: plain {a}, sam {b}"
        if (mine.finish, mine.stop) != (theirs.finish, theirs.stop):
            return f"ends by {mine.finish} {mine.stop!r}, not by {theirs.finish} {theirs.stop!r}"
        if problem := logprobs_differ(theirs.logprobs, mine.logprobs):
            return f"logprobs: {problem}"
    if not got.aborted and (problem := logprobs_differ(expected.prompt_logprobs, got.prompt_logprobs)):
        return f"prompt_logprobs: {problem}"
    return None


def cut_as(expected, got):
    """`expected`, cut where an aborted request's answers end."""
    answers = copy.deepcopy(expected.answers[: len(got.answers)])
    for mine, theirs in zip(got.answers, answers, strict=False):
        theirs.tokens, theirs.text = theirs.tokens[: len(mine.tokens)], theirs.text[: len(mine.text)]
        if theirs.logprobs is not None and mine.logprobs is not None:
            theirs.logprobs = theirs.logprobs[: len(mine.logprobs)]
        theirs.finish, theirs.stop = mine.finish, mine.stop
    return Result(answers)


def logprobs_differ(expected, got):
    if (expected is None) != (got is None) or expected is not None and len(expected) != len(got):
        return f"{'none' if got is None else len(got)}, not {'none' if expected is None else len(expected)}"
    for at, (a, b) in enumerate(zip(expected or (), got or (), strict=True)):
        same = (a is None) == (b is None) and (a or {}).keys() == (b or {}).keys()
        if not same or any(abs(a[t][0] - b[t][0]) > 1e-3 or a[t][1] != b[t][1] for t in a or ()):
            return f"entry {at} is {b}, not {a}"
    return None


def wrongly_indexed(asks, expected, results, noted, verify):
    """Return a sentence about wrongly indexed answers, or None.

    Answers of aborted requests or with stop strings may be missing, or be longer than what the client received. One
    turn of a session may be indexed. No other text may be.
    """
    noted, loose = collections.Counter(map(tuple, noted)), []
    for ask in asks:
        result = results[ask.key]
        if result.refused:
            continue
        for at, whole in enumerate(expected[ask.key].answers):
            seen = tuple(result.answers[at].tokens) if at < len(result.answers) else ()
            if result.aborted or ask.turns or "stop" in ask.params:
                unknown = "stop" in ask.params or (ask.draws and verify == "rejection")
                loose.append((seen, None if unknown else tuple(whole.tokens), bool(ask.turns)))
            elif noted[seen]:
                noted[seen] -= 1
            else:
                near = max(noted, key=lambda other: first_difference(seen, other), default=())
                at = first_difference(seen, near)
                return (
                    f"the answer of request {ask.key} was not indexed: the nearest to its {len(seen)} tokens "
                    f"has {len(near)} and differs at {at}: {near[at : at + 8]}, not {seen[at : at + 8]}"
                )
    texts = list(noted.elements())
    if len(texts) > len(loose):
        return f"{len(texts)} answers are indexed for {len(loose)} requests: {texts}"
    if texts:
        fits = np.array([[may_be(text, *one) for one in loose] for text in texts])
        for at, chosen in zip(*linear_sum_assignment(fits, maximize=True), strict=True):
            if not fits[at, chosen]:
                return f"indexed is what no request answered: {texts[at][:12]} ... of {len(texts[at])}"
    return None


def may_be(text, seen, whole, is_session):
    """Whether a text may have been indexed for an answer. seen: what the client received; whole: the whole answer, None
    if unknown."""
    if is_session:  # one of its turns
        return whole is None or any(whole[at : at + len(text)] == text for at in range(len(whole) + 1))
    if whole is None:
        return text[: len(seen)] == seen[: len(text)]
    return whole[: len(text)] == text
