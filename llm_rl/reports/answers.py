# SPDX-License-Identifier: Apache-2.0
"""Which sampled tokens two seeded runs share, from the answers that each has logged, and why the first one differs."""

import json
from dataclasses import dataclass

from llm_rl.reports.runs import ReportError

FORWARD, TRAINING, PROMPTS, UNKNOWN = "forward", "training", "prompts", "unknown"
DIVERGED = 4
"""Times the difference of step 1 from which a difference of log-probabilities is one of the weights, not of rounding."""


@dataclass(frozen=True)
class Answer:
    """One logged answer: a hash of its prompt's token ids, its token ids, and their log-probabilities or None."""

    asked: str
    tokens: list[int]
    log_probs: list[float] | None


def read_answers(folder):
    """The answers that a run has logged, {(training step, prompt, answer): Answer}; empty where it logged none."""
    answers = {}
    for path in sorted(folder.glob("answers-*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                step, prompt, sibling, asked, tokens, log_probs = json.loads(line)
            except (TypeError, ValueError):
                raise ReportError(f"{path}, line {number}, is not an answer: six values belong there") from None
            answers[step, prompt, sibling] = Answer(asked, tokens, log_probs)
    return answers


def compare_answers(off, on):
    """What two runs' answers share; None unless both have logged some.

    `steps` has a row a training step: answers of both runs, tokens of them with SAM on, how many of these are equal (up to
    the first that differs in each answer), the largest difference of log-probabilities of equal tokens, and answers that
    one run alone has sampled. `first_difference`: where and why, or None.
    """
    if not off or not on:
        return None
    rows, first = [], None
    for step in sorted({place[0] for place in (*off, *on)}):
        places = {name: {p for p in run if p[0] == step} for name, run in (("off", off), ("on", on))}
        both = sorted(places["off"] & places["on"])
        row = {"step": step, "answers": len(both), "answers_equal": 0, "tokens": 0, "tokens_equal": 0}
        row |= {"log_prob_difference": None, "only_off": len(places["off"]) - len(both)}
        row |= {"only_on": len(places["on"]) - len(both)}
        for place in both:
            a, b = off[place], on[place]
            equal = _common(a, b)
            row["tokens"] += len(b.tokens)
            row["tokens_equal"] += equal
            row["answers_equal"] += a.asked == b.asked and a.tokens == b.tokens
            if a.log_probs and b.log_probs and equal:
                pairs = zip(a.log_probs[:equal], b.log_probs[:equal], strict=True)
                difference = max(abs(x - y) for x, y in pairs)
                row["log_prob_difference"] = max(difference, row["log_prob_difference"] or 0.0)
            if first is None and (a.asked != b.asked or a.tokens != b.tokens):
                first = {"step": step, "prompt": place[1], "answer": place[2], "position": equal}
                first |= {
                    "token_off": _token(a, equal),
                    "token_on": _token(b, equal),
                    "log_prob_off": _log_prob(a, equal),
                    "log_prob_on": _log_prob(b, equal),
                    "same_prompt": a.asked == b.asked,
                }
        rows.append(row)
    if first:
        first["cause"] = _cause(first, rows)
    return {"steps": rows, "first_difference": first}


def _common(a, b):
    """How many tokens two answers share before the first that differs; none where their prompts differ."""
    if a.asked != b.asked:
        return 0
    shared = zip(a.tokens, b.tokens, strict=False)
    return next((i for i, (x, y) in enumerate(shared) if x != y), min(len(a.tokens), len(b.tokens)))


def _token(answer, position):
    return answer.tokens[position] if position < len(answer.tokens) else None


def _log_prob(answer, position):
    return answer.log_probs[position] if answer.log_probs and position < len(answer.log_probs) else None


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


def sentence(sampled, name, say=lambda english, chinese: english):
    """What compare_answers found, in words; `name`: of the run with speculation; `say` picks the language."""
    total, equal = (sum(row[name] for row in sampled["steps"]) for name in ("tokens", "tokens_equal"))
    count = say(
        f"{equal:,} of {total:,} tokens sampled with {name} equal those with SAM off.",
        f"{name} 采样的 {total:,} 个 token 中，{equal:,} 个与 SAM off 相同。",
    )
    first = sampled["first_difference"]
    if not first:
        return count
    step, prompt, answer, position = (first[name] for name in ("step", "prompt", "answer", "position"))
    where = say(
        f" The first that differs: training step {step}, prompt {prompt}, answer {answer}, position {position} "
        "(these three counted from 0): ",
        f"第一个不同之处：训练步 {step}，第 {prompt} 个提示，第 {answer} 个回答，位置 {position}（后三者从 0 计）：",
    )
    if not first["same_prompt"]:
        return f"{count}{where}" + say("the runs asked different prompts there.", "两次运行在此处的提示不同。")
    end = say("the end", "回答结束")

    def token(arm):
        name = end if first[f"token_{arm}"] is None else f"token {first[f'token_{arm}']}"
        value = first[f"log_prob_{arm}"]
        return (
            name if value is None else say(f"{name} (log-probability {value:.7f})", f"{name}（对数概率 {value:.7f}）")
        )

    both = say(
        f"{token('off')} off, {token('on')} with {name}; ", f"SAM off 为 {token('off')}，{name} 为 {token('on')}；"
    )
    why = {
        FORWARD: say(
            "the weights were the same, but a pass over several positions rounds otherwise than a pass over one",
            "权重相同，但一次前向计算多个位置与只计算一个位置的舍入不同",
        ),
        TRAINING: say("the weights of the two runs were no longer the same", "两次运行的权重已不再相同"),
        UNKNOWN: say(
            "it is not known why, as the runs logged no log-probabilities", "原因不明，因为运行没有记录对数概率"
        ),
    }[first["cause"]]
    start = sampled["steps"][0]["log_prob_difference"]
    here = next(row["log_prob_difference"] for row in sampled["steps"] if row["step"] == step)
    if here is not None and start is not None:
        later = step != sampled["steps"][0]["step"]
        why += say(
            f" (log-probabilities of equal tokens differ by up to {here:.1e} in this step"
            + (f", by {start:.1e} in the first)" if later else ")"),
            f"（相同 token 的对数概率在这一步最多相差 {here:.1e}" + (f"，第一步 {start:.1e}）" if later else "）"),
        )
    return f"{count}{where}{both}{why}" + say(".", "。")
