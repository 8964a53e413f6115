# SPDX-License-Identifier: Apache-2.0
"""Compare the sampled tokens in the answer logs of two seeded runs, and find the cause of the first difference."""

from dataclasses import dataclass

from llm_rl.errors import UserError
from llm_rl.steps import complete_lines

FORWARD, TRAINING, PROMPTS, UNKNOWN = "forward", "training", "prompts", "unknown"
DIVERGED = 4
"""Log-probability differences more than this many times those of step 1 come from the weights, not from rounding."""


@dataclass(frozen=True)
class LoggedAnswer:
    """One logged answer: a hash of its prompt's token ids, its token ids, and their log-probabilities or None."""

    prompt_hash: str
    tokens: list[int]
    log_probs: list[float] | None


def read_answers(folder):
    """The answers that a run logged, {(training step, prompt, answer): LoggedAnswer}; empty if it logged none.

    Raises UserError if a log cannot be read or is damaged.
    """
    answers = {}
    for path in sorted(folder.glob("answers-*.jsonl")):
        for number, (_, line) in enumerate(complete_lines(path), 1):
            try:
                step, prompt, sibling, prompt_hash, tokens, log_probs = line
            except (TypeError, ValueError):
                raise UserError(f"{path}, line {number}, is not an answer: it must have six values") from None
            answers[step, prompt, sibling] = LoggedAnswer(prompt_hash, tokens, log_probs)
    return answers


def compare_answers(off, on):
    """Compare the answers of two runs; None unless both logged answers.

    `steps` has a row for each training step: answers that both runs sampled, their tokens in the run `on`, how many of
    these are equal (up to the first difference in each answer), the largest log-probability difference of equal tokens,
    and answers that only one run sampled. `first_difference`: its place and cause, or None.
    """
    if not off or not on:
        return None
    rows, first = [], None
    for step in sorted({place[0] for place in (*off, *on)}):
        places = {name: {p for p in run if p[0] == step} for name, run in (("off", off), ("on", on))}
        both = sorted(places["off"] & places["on"])
        row = {"step": step, "answers": len(both), "answers_equal": 0, "tokens": 0, "tokens_equal": 0}
        row |= {"log_prob_difference": None}
        row |= {f"only_{arm}": len(places[arm]) - len(both) for arm in ("off", "on")}
        for place in both:
            a, b = off[place], on[place]
            equal = _common(a, b)
            row["tokens"] += len(b.tokens)
            row["tokens_equal"] += equal
            row["answers_equal"] += a.prompt_hash == b.prompt_hash and a.tokens == b.tokens
            if a.log_probs and b.log_probs and equal:
                pairs = zip(a.log_probs[:equal], b.log_probs[:equal], strict=True)
                difference = max(abs(x - y) for x, y in pairs)
                row["log_prob_difference"] = max(difference, row["log_prob_difference"] or 0.0)
            if first is None and (a.prompt_hash != b.prompt_hash or a.tokens != b.tokens):
                first = {"step": step, "prompt": place[1], "answer": place[2], "position": equal}
                first["same_prompt"] = a.prompt_hash == b.prompt_hash
                for arm, answer in (("off", a), ("on", b)):
                    first[f"token_{arm}"] = _at(answer.tokens, equal)
                    first[f"log_prob_{arm}"] = _at(answer.log_probs, equal)
        rows.append(row)
    if first:
        first["cause"] = _cause(first, rows)
    return {"steps": rows, "first_difference": first}


def _common(a, b):
    """Number of equal tokens before the first difference of two answers; 0 if their prompts differ."""
    if a.prompt_hash != b.prompt_hash:
        return 0
    shared = zip(a.tokens, b.tokens, strict=False)
    return next((i for i, (x, y) in enumerate(shared) if x != y), min(len(a.tokens), len(b.tokens)))


def _at(values, position):
    return values[position] if values and position < len(values) else None


def _cause(first, rows):
    if not first["same_prompt"]:
        return PROMPTS
    if first["step"] == rows[0]["step"]:
        return FORWARD
    here = next(row["log_prob_difference"] for row in rows if row["step"] == first["step"])
    start = rows[0]["log_prob_difference"]
    if here is None or start is None:
        return UNKNOWN
    return TRAINING if here > DIVERGED * max(start, 1e-7) else FORWARD
