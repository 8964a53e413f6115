# SPDX-License-Identifier: Apache-2.0
"""The pages of a report: Markdown, from one template for all languages, and a self-contained HTML file.

The template gets the result of `variables`. A table is a filter block around the table's head.
"""

import base64
import functools
import html
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from llm_rl.article import CURVES
from llm_rl.reports.compare import NAMES, arms_of, busy_loads, figures, gained_cell

STYLE = """
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif; color: #1c1c1c;
  background: #fff; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.92rem; margin: 0.8rem 0; }
td, th { border: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { background: #f4f4f4; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: 0.92rem; }
code { background: #f4f4f4; padding: 0 0.2em; overflow-wrap: anywhere; }
"""


def markdown(summary, language, article=False):
    """The report as Markdown.

    summary: from compare.summarize; article: whether to mention the article's curves.
    """
    text = _template(language).make_module(variables(summary, article)).report()
    return re.sub(r"\n{3,}", "\n\n", str(text)).strip() + "\n"


def words():
    """The macros of the template in English, as attributes."""
    return _template("en").module


def speech(language):
    """Return a function that chooses between an English and a Chinese text."""
    return {"en": lambda english, chinese: english, "zh": lambda english, chinese: chinese}[language]


def text_table(summary):
    """The main figures as text for a terminal."""
    names = [NAMES[arm] for arm in arms_of(summary)]
    head = ["", names[0], *(cell for name in names[1:] for cell in (name, "gain"))]
    rows = [head, *figures(summary)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def page(text, language, pictures, links):
    """Convert Markdown to an HTML file.

    pictures: {file name: bytes of an SVG}; links: {text: file name} for the first line.
    """

    def figure(match):
        data = base64.b64encode(pictures[match[1]]).decode()
        image = f'<img alt="{match[2]}" src="data:image/svg+xml;base64,{data}">'
        return f"<figure>{image}<figcaption>{match[2]}</figcaption></figure>"

    rules = ["backticks", "escape", "heading", "image", "list", "table"]
    body = MarkdownIt("zero").enable(rules).render(text)
    body = re.sub(r'<p><img src="([^"]*)" alt="([^"]*)"\s*/?></p>', figure, body)
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    title = next(line[2:] for line in text.splitlines() if line.startswith("# "))
    nav = " · ".join(f'<a href="{html.escape(path)}">{html.escape(name)}</a>' for name, path in links.items())
    return (
        f'<!DOCTYPE html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<p>{nav}</p>\n{body}</body>\n</html>\n"
    )


@functools.cache
def _template(language):
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {"table": table, "relabel": relabel}
    environment.globals["say"] = speech(language)
    return environment.get_template("report.md.jinja")


def table(head, rows):
    """A Markdown table. head: its first line; rows: lists of cells."""
    columns = head.strip().count("|") - 1
    return "\n".join([head.strip(), _line(["---", *["---:"] * (columns - 1)]), *map(_line, rows)]) + "\n"


def _line(cells):
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def relabel(rows, labels):
    """Replace the first cell of each row. labels: a mapping, or a format string."""
    return [[labels[row[0]] if isinstance(labels, dict) else labels.format(row[0]), *row[1:]] for row in rows]


def variables(summary, article=False):
    """The variables of the template; rows are lists of cells. article: whether the pictures show the article's curves.

    summary; arms, others: all runs of the summary, and those with speculation, each with its `name`; loads: machine
    load if it was busy; same_noise: whether all runs logged answers sampled by seed; engine_logged: whether all have
    engine logs; quoted: the article's times if it has this recipe; article: its curves, or None; figures, times, gains,
    positions, drafts, training, differences, facts: rows; costs, sampled: rows by name of the run; trees: tree ids.
    """
    arms = [summary[arm] | {"name": NAMES[arm]} for arm in arms_of(summary)]
    others = arms[1:]
    return {
        "summary": summary,
        "arms": arms,
        "others": others,
        "loads": busy_loads(summary),
        "same_noise": all(arm["sampled"] for arm in others),
        "engine_logged": all(arm["step_costs"] for arm in arms),
        "figures": figures(summary),
        "quoted": _quoted(summary["recipe"]["name"]),
        "times": [
            [arm["name"], *(_number(arm[name], ".2f") for name in ("round_s", "rollout_s", "step_s"))] for arm in arms
        ],
        "gains": [
            [arm["name"], *(gained_cell(arm["gain"][name]) for name in ("round", "rollout", "step"))] for arm in others
        ],
        "positions": _positions([arm for arm in others if arm["positions"]]),
        "costs": {arm["name"]: _costs(summary["off"], arm) for arm in others},
        "drafts": _drafts(others),
        "training": _training(arms, summary["steps"]),
        "differences": _differences(arms),
        "sampled": {arm["name"]: _sampled(arm["sampled"]) for arm in others if arm["sampled"]},
        "article": CURVES if article else None,
        "facts": _facts(arms),
        "trees": ", ".join(f"{module} `{tree}`" for module, tree in summary["tree_ids"].items()),
    }


def _quoted(recipe):
    """The article's times for one of its recipes, as rows; empty for other recipes."""
    seconds = CURVES["seconds"].get(recipe.removesuffix("-recommended"), {})
    columns = [seconds.get(what) for what in ("round", "rollout", "step")]
    if not seconds:
        return []
    rows = [["off", *(_number(pair and pair[0], ",.2f") for pair in columns)]]
    rows += [["on", *(_number(pair and pair[1], ",.2f") for pair in columns)]]
    return [*rows, ["gain", *(_number(pair and pair[0] / pair[1] - 1, "+.2%") for pair in columns)]]


def _number(value, form):
    return "-" if value is None else format(value, form)


def _positions(arms):
    """Steps with a draft and tokens per step, by position in the answer."""
    rows = []
    for start in sorted({row["from"] for arm in arms for row in arm["positions"]}):
        row = [f"{start:,}"]
        for arm in arms:
            counts = next((counts for counts in arm["positions"] if counts["from"] == start), None)
            row += [f"{counts['steps']:,.0f}", f"{counts['tokens'] / counts['steps']:.3f}"] if counts else ["0", "-"]
        rows.append(row)
    return rows


def _costs(off, arm):
    """Times of engine steps without speculation and with drafts, by running requests."""
    plain_steps = {row["min_running"]: row for row in off["step_costs"]}
    rows = []
    for row in arm["step_costs"]:
        low, high = row["min_running"], row["max_running"]
        plain = plain_steps.get(low)
        if not row["drafted"] or not plain or not plain["plain"]:
            continue
        speedup = row["tokens_per_step"] * plain["plain_ms"] / row["drafted_ms"]
        cells = [f"{low}" if low == high else f"{low}-{high}", f"{plain['plain']:,}", f"{plain['plain_ms']:.2f}"]
        cells += [f"{row['drafted']:,}", f"{row['drafted_ms']:.2f}", f"{row['tokens_per_step']:.3f}", f"{speedup:.2f}"]
        rows.append(cells)
    return rows


def _drafts(arms):
    """Draft tokens proposed, accepted, and their share, by source."""
    rows = []
    for source in sorted({source for arm in arms for source in arm["by_source"]}):
        row = [f"`{source}`"]
        for arm in arms:
            counts = arm["by_source"].get(source, {"proposed": 0, "accepted": 0})
            proposed, accepted = counts["proposed"], counts["accepted"] or 0
            row += [f"{proposed:,.0f}", f"{accepted:,.0f}", f"{accepted / proposed:.1%}" if proposed else "-"]
        rows.append(row)
    return rows


def _training(arms, steps):
    """Reward, length and rollout time of each run, by training step."""
    columns = [
        (arm[name], form)
        for name, form in (("rewards", "+.3f"), ("lengths", ".1f"), ("rollout_s_per_step", ".1f"))
        for arm in arms
    ]
    return [[step + 1, *(_number(values[step], form) for values, form in columns)] for step in range(steps)]


def _differences(arms):
    """Tokens by bound of their log-probability difference, and cumulative shares; empty unless all runs have them."""
    counts = [arm["log_prob_differences"] for arm in arms]
    if not all(sum(of_arm.values()) for of_arm in counts):
        return []
    rows, below = [], [0] * len(arms)
    for bound in sorted({bound for of_arm in counts for bound in of_arm}, key=float):
        rows.append([bound])
        for i, of_arm in enumerate(counts):
            below[i] += of_arm.get(bound, 0)
            rows[-1] += [f"{of_arm.get(bound, 0):,.0f}", f"{below[i] / sum(of_arm.values()):.2%}"]
    return rows


def _sampled(sampled):
    """Numbers of equal sampled answers and tokens, by training step."""
    return [
        [row["step"], row["answers"], row["answers_equal"], f"{row['tokens']:,}", f"{row['tokens_equal']:,}"]
        + [_number(row["log_prob_difference"], ".1e"), row["only_off"], row["only_on"]]
        for row in sampled["steps"]
    ]


def _facts(arms):
    """Settings and machines; rows without any value are omitted."""
    settings = {"switch": "sam", "maximum draft length, k": "k", "rule": "rule", "sources": "sources"}
    settings |= {"minimum probability": "min_prob", "verification": "verify"}
    host = {"machine": "machine", "system": "system", "CPUs": "cpus"}
    rows = [[what, *(arm[name] for arm in arms)] for what, name in settings.items()]
    rows += [[what, *((arm["host"] or {}).get(name) for arm in arms)] for what, name in host.items()]
    resumed = (list(map(str, arm["resumed_after"])) or None for arm in arms)
    rows.append(["resumed after steps (the next one is slower)", *resumed])
    cells = [[", ".join(cell) if isinstance(cell, list) else cell for cell in row] for row in rows]
    return [["-" if cell is None else cell for cell in row] for row in cells if any(c is not None for c in row[1:])]
