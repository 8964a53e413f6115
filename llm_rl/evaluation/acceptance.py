# SPDX-License-Identifier: Apache-2.0
"""Tokens per step against the length of the answer so far, for several k: the article's section 1.3.

Answers are greedy. By default drafts are the article's: rule `oldest` over the request's own text, k tokens wherever
there is a match. A step is one forward pass over one request, except the first pass, which processes the prompt.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sam_core.files import replacing, write_json

from llm_rl.data import files
from llm_rl.errors import UserError
from llm_rl.evaluation import questions
from llm_rl.evaluation.engine import Engine, add_arguments, at_least, device, load_tokenizer, prompt_ids
from llm_rl.evaluation.engine import settings as engine_settings

FIRST_BIN = 64
"""End of the first bin in tokens; each further bin ends at twice the length."""
MIN_ANSWERS = 3
"""Bins with fewer answers are not drawn."""


def add_acceptance_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8], help="default 1 2 3 4 6 8")
    parser.add_argument("--out", type=Path, required=True, help="folder for acceptance.json and acceptance.png")


def run(args: argparse.Namespace) -> int:
    """Rewrite acceptance.json after each k, then draw the picture; return 1 if a k failed, else 0."""
    at_least(args, k=1, max_tokens=2, batch=1, tensor_parallel=1)
    selected = questions.read(args.data, args.limit)
    tokenizer = load_tokenizer(args.model)
    prompts = [prompt_ids(tokenizer, question.messages, args.template) for question in selected]
    sampling = {"temperature": 0, "max_tokens": args.max_tokens, "detokenize": False}
    sam = {"rule": args.rule, "sources": ["request"], "threshold": args.batch, "min_prob": 0}
    engine_args = {"max_model_len": max(map(len, prompts)) + args.max_tokens, **engine_settings(args)}
    ks = sorted(set(args.k))
    sweep: list[dict[str, Any]] = []
    result = {"model": args.model, "data": args.data.name, "data_sha256": files.sha256(args.data)}
    result |= {"questions": len(selected), "sam": sam, "engine": engine_args, "max_tokens": args.max_tokens}
    result |= {"device": device(), "sweep": sweep}
    args.out.mkdir(parents=True, exist_ok=True)
    for k in ks:
        print(f"k = {k}: {len(selected)} answers", flush=True)
        try:
            with Engine(engine_args, k, sam) as engine:
                steps = [answer.steps for _, answer in engine.answers([(prompt, sampling) for prompt in prompts])]
                counted = engine.counted()
            if not counted["accepted"]:
                raise UserError(f"no draft was accepted ({counted['drafted']} verified): nothing to measure")
        except UserError as error:
            print(f"error: k = {k}: {error}", file=sys.stderr)
            continue
        sweep.append({"k": k, **counted, **by_length(steps)})
        write_json(args.out / "acceptance.json", result)
    if sweep:
        draw(args.out / "acceptance.png", result)
        print(table(sweep))
        print(f"wrote {args.out}/acceptance.json and acceptance.png")
    return int(len(sweep) < len(ks))


def by_length(answers: Iterable[list[int]]) -> dict[str, Any]:
    """Tokens per step over all answers, and by length of the answer before the step.

    answers: for each answer, the tokens of each step, including the first.
    Returns tokens_per_step, steps, and bins: from, to, answers, steps, tokens, tokens_per_step, and standard_error of
    this ratio of sums over answers (None with one answer).
    """
    bins: dict[int, list[list[int]]] = {}
    for steps in answers:
        at = steps[0] if steps else 0
        of_answer: dict[int, list[int]] = {}
        for tokens in steps[1:]:
            place = max(0, math.ceil(math.log2((at + 1) / FIRST_BIN)))
            count = of_answer.setdefault(place, [0, 0])
            count[0] += 1
            count[1] += tokens
            at += tokens
        for place, count in of_answer.items():
            bins.setdefault(place, []).append(count)
    rows = []
    for place, counts in sorted(bins.items()):
        steps, tokens = (sum(column) for column in zip(*counts, strict=True))
        rate, number = tokens / steps, len(counts)
        spread = sum((gained - rate * count) ** 2 for count, gained in counts)
        error = math.sqrt(spread * number / (number - 1)) / steps if number > 1 else None
        begin, end = FIRST_BIN * 2 ** (place - 1) if place else 0, FIRST_BIN * 2**place
        rows.append({"from": int(begin), "to": end, "answers": number, "steps": steps, "tokens": tokens})
        rows[-1] |= {"tokens_per_step": rate, "standard_error": error}
    steps, tokens = (sum(row[name] for row in rows) for name in ("steps", "tokens"))
    return {"tokens_per_step": tokens / steps if steps else None, "steps": steps, "bins": rows}


def table(sweep: list[dict[str, Any]]) -> str:
    """Tokens per step by k and length, as a Markdown table."""
    ends = sorted({row["to"] for one in sweep for row in one["bins"]})
    lines = [f"| k | all | {' | '.join(f'to {end:,}' for end in ends)} | accepted / verified |"]
    lines.append("|---:|---:|" + "---:|" * len(ends) + "---:|")
    for one in sweep:
        rates = {row["to"]: f"{row['tokens_per_step']:.2f}" for row in one["bins"]}
        cells = [f"{one['tokens_per_step']:.2f}", *(rates.get(end, "") for end in ends)]
        lines.append(f"| {one['k']} | {' | '.join(cells)} | {one['accepted'] / one['drafted']:.1%} |")
    return "\n".join(lines)


def draw(path: Path, result: dict[str, Any]) -> None:
    """Draw tokens per step against length, with a line for each k, and against k."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    lengths, sweep = figure.subplots(1, 2, width_ratios=(3, 2))
    colours = colormaps["viridis"].resampled(len(result["sweep"]) + 1)
    for number, one in enumerate(result["sweep"]):
        rows = [row for row in one["bins"] if row["answers"] >= MIN_ANSWERS] or one["bins"]
        ends, rates = ([row[name] for row in rows] for name in ("to", "tokens_per_step"))
        errors = [1.96 * (row["standard_error"] or 0) for row in rows]
        style = {"fmt": "o-", "markersize": 4, "capsize": 3, "linewidth": 1.4, "color": colours(number)}
        lengths.errorbar(ends, rates, errors, label=f"k = {one['k']}", **style)
    lengths.set_xscale("log", base=2)
    lengths.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lengths.set(xlabel="tokens of the answer so far, end of the bin", title="Against length (bars: 95 % over answers)")
    lengths.legend(frameon=False, ncols=2)
    points = [(one["k"], one["tokens_per_step"]) for one in result["sweep"]]
    sweep.plot(*zip(*points, strict=True), "o-", color="#d1495b")
    for point in points:
        sweep.annotate(f"{point[1]:.2f}", point, (0, 7), textcoords="offset points", ha="center", fontsize=9)
    sweep.set(xticks=[k for k, _ in points], xlabel="k, maximum tokens of a draft", title="All lengths together")
    for axes in (lengths, sweep):
        axes.axhline(1, color="#7a7a7a", linewidth=1, linestyle=":")
        axes.set_ylabel("tokens per request and step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.15)
    what = f"{Path(result['model']).name} on {result['data']}, {result['questions']} questions"
    figure.suptitle(f"{what}, greedy, rule {result['sam']['rule']}")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
