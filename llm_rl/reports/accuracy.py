# SPDX-License-Identifier: Apache-2.0
"""Evaluations with SAM off and on, as `python -m llm_rl.evaluation compare --out FILE` has written them."""

from llm_rl.reports.runs import ReportError, read_json

NEEDED = ("questions", "answers_to_each", "temperature", "off", "on", "difference", "p_value", "differs")


def read(path):
    """The evaluation in `path`, with its file's name as "name"; ReportError if it is none."""
    found = read_json(path)
    if not isinstance(found, dict) or any(name not in found for name in NEEDED):
        raise ReportError(
            f"{path} is no comparison: make it by `python -m llm_rl.evaluation compare OFF ON --out FILE`"
        )
    return found | {"name": path.stem}


def accuracy_blocks(evaluations, say):
    """The report's section on accuracy; `say` picks the language."""
    heading = ("heading", say("Accuracy", "精度"))
    if not evaluations:
        text = say(
            "No evaluation was given (`--accuracy FILE`); rewards and lengths above are those of training.",
            "没有提供评测结果（`--accuracy FILE`）；上文的奖励与长度来自训练。",
        )
        return [heading, ("text", text)]
    rows = [
        [
            say("evaluation", "评测"),
            say("questions x answers", "题数 x 回答数"),
            say("temperature", "温度"),
            "pass@1, SAM off",
            "pass@1, SAM on",
            say("difference, points", "差值，百分点"),
            say("interval, points", "置信区间，百分点"),
            say("p, paired", "p 值，配对"),
            say("a difference", "有差别"),
        ]
    ]
    for found in evaluations:
        gap = found["difference"]
        rows.append(
            [
                found["name"],
                f"{found['questions']} x {found['answers_to_each']}",
                f"{found['temperature']:g}",
                f"{100 * found['off']['value']:.1f}",
                f"{100 * found['on']['value']:.1f}",
                f"{100 * gap['value']:+.1f}",
                f"{100 * gap['low']:+.1f} .. {100 * gap['high']:+.1f}",
                f"{found['p_value']:.2g}",
                say("seen", "有") if found["differs"] else say("not seen", "未见"),
            ]
        )
    note = say(
        "The interval is what the answers leave possible; not seen does not mean none.",
        "区间为这些回答所能容许的范围；“未见”不等于没有。",
    )
    return [heading, ("table", rows), ("text", note)]
