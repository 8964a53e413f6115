# SPDX-License-Identifier: Apache-2.0
"""Sums of two-digit numbers, solved step by step: the task of the tiny model.

Answers resemble long reasoning in what matters to drafting and DAPO: most are short and a few are many times longer,
later parts repeat earlier ones in other words, and a step is sometimes wrong. Standard library only.
"""

import random
import re

from llm_rl.data.schemas import verl_row

BEFORE = "Solve this step by step and end with a line Answer: $Answer.\n\n"
AFTER = '\n\nPut the result on its own line after "Answer:".'

SHORT_TERMS = (2, 3, 4)
LONG_TERMS = (8, 9, 10, 11, 12)
LONG_SHARE = 0.03  # of the prompts
SLIP, SLIP_CARRY = 0.01, 0.04  # chance that a written sum is wrong, without and with a carry
CHECK = 0.45  # chance of one more check after each pass
CAREFUL_SHARE, CAREFUL_CHECKS = 0.06, range(8, 17)  # answers to short prompts that check over and over
REWORD = 0.1  # chance that the next check may be worded in another way


def rng_for(seed, purpose):
    """An independent random.Random for each purpose, the same on every platform."""
    return random.Random(f"{seed}/{purpose}")


def problems(count, rng, long_share=LONG_SHARE):
    """`count` different tuples of terms; a tuple is long with probability `long_share`."""
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < count:
        lengths = LONG_TERMS if rng.random() < long_share else SHORT_TERMS
        chosen[tuple(rng.randint(10, 99) for _ in range(rng.choice(lengths)))] = None
    return list(chosen)


def question(terms):
    """The prompt text of a problem, with instructions before and after it."""
    return f"{BEFORE}What is {' + '.join(map(str, terms))}?{AFTER}"


def messages(terms):
    """The chat messages of a problem: one from the user."""
    return [{"content": question(terms), "role": "user"}]


def row(index, terms):
    """A row in the schema of DAPO-Math-17k."""
    return verl_row("math_dapo", question(terms), str(sum(terms)), str(index), "rule-lighteval/MATH_v2")


def correct(answer, terms):
    """Whether the last "Answer:" in the last 300 characters gives the sum, like verl's math_dapo scorer."""
    results = re.findall(r"Answer\s*:\s*([^\n]+)", answer[-300:], re.IGNORECASE)
    return bool(results) and results[-1].strip() == str(sum(terms))


def solution(terms, rng, checked=True):
    """A worked answer: a first pass, a random number of checks (none unless `checked`), and the last total as result.

    A check that disagrees with the previous pass is followed by another check.
    """
    careful = len(terms) <= max(SHORT_TERMS) and rng.random() < CAREFUL_SHARE
    planned = rng.choice(CAREFUL_CHECKS) if careful else 0
    wording = rng.choice(WORDINGS)
    totals = _running_totals(terms, rng)
    parts, checks, agreed = [_first_pass(terms, totals)], 0, True
    while checked and (checks < planned or not agreed or rng.random() < CHECK):
        again = _running_totals(terms, rng)
        agreed = again[-1] == totals[-1]
        verdict = f"This agrees with {totals[-1]}." if agreed else f"This is not {totals[-1]}, it is {again[-1]}."
        parts.append(f"{wording(_steps(terms, again))} {verdict}")
        totals, checks = again, checks + 1
        if rng.random() < REWORD:
            wording = rng.choice(WORDINGS)
    return "\n".join([*parts, f"The sum is {totals[-1]}.", f"Answer: {totals[-1]}"])


def _running_totals(terms, rng):
    totals = [terms[0]]
    for term in terms[1:]:
        carry = totals[-1] % 10 + term % 10 > 9
        slip = rng.choice((-10, -1, 1, 10)) if rng.random() < (SLIP_CARRY if carry else SLIP) else 0
        totals.append(totals[-1] + term + slip)
    return totals


def _steps(terms, totals):
    return list(zip(totals[:-1], terms[1:], totals[1:], strict=True))


def _first_pass(terms, totals):
    lines = [f"We add {len(terms)} numbers, starting with {terms[0]}."]
    for before, term, after in _steps(terms, totals):
        tens, ones = term // 10 * 10, term % 10
        lines.append(f"Now add {term}: {before} + {tens} = {before + tens}, {before + tens} + {ones} = {after}.")
    return "\n".join(lines)


def _check_giving(steps):
    return f"Let me check. From {steps[0][0]}, " + ", then ".join(f"adding {t} gives {a}" for _, t, a in steps) + "."


def _check_making(steps):
    return "Let me check again. " + " ".join(f"{b} and {t} make {a}." for b, t, a in steps)


def _check_stepwise(steps):
    return "Once more, step by step. " + " ".join(f"Add {t}: {b} + {t} = {a}." for b, t, a in steps)


WORDINGS = (_check_giving, _check_making, _check_stepwise)
