# SPDX-License-Identifier: Apache-2.0
"""Compare two finished runs that differ in speculation alone.

    python -m llm_rl.reports.compare --off RUN_DIR --on RUN_DIR --out DIR

Prints a table and writes DIR/summary.json, DIR/report.md and DIR/report.png. Exits with 1 and one sentence, and writes
nothing, if the runs cannot be compared or the `on` run never speculated.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from llm_rl.reports.answers import compare_answers, read_answers, sentence
from llm_rl.reports.runs import SPEC, ReportError, read_run

NOTES = """\
- gain = (off / on) - 1, so +30 % says that the old way took 1.3 times as long.
- Means and sums are over training steps {first} to {last}{skipped}.
{texts}
- tail: engine steps with at most {threshold} requests running, in both runs alike.
- tokens a step: tokens that one request gains in one engine step; exactly 1 without speculation.
"""

DIFFERENT_TEXTS = """\
- The two runs sample different answers, so time a token is the fairer comparison; time a training step also depends on
  how long the answers happened to be."""
SAME_TEXTS = """\
- Both runs sample by seed and position, so the same answers as far as it says below. Answers to prompts that dynamic
  sampling asked too many may be in one run only."""


def check_comparable(off, on):
    """ReportError unless the runs differ in speculation alone and the `on` run speculated."""
    for name in ("pin_set", "tree_ids", "seed", "threshold"):
        if off.record[name] != on.record[name]:
            raise ReportError(f"the runs differ in {name}: {off.record[name]} off, {on.record[name]} on")
    configs = [
        {name: value for name, value in run.record.get("config", {}).items() if name not in ("sam", "sam_options")}
        for run in (off, on)
    ]
    if configs[0] != configs[1]:
        raise ReportError(f"the runs differ in {_difference(*configs)}; only sam and sam_options may differ")
    if len(off.steps) != len(on.steps):
        raise ReportError(f"the runs differ in length: {len(off.steps)} training steps off, {len(on.steps)} on")
    if off.total("drafted"):
        raise ReportError(f"the off run verified {off.total('drafted'):.0f} draft tokens: it ran with speculation")
    if not on.total("drafted"):
        raise ReportError("the on run verified no draft: speculation was silently absent")


def _difference(off, on, path="config"):
    """The first setting that two configurations do not share, as a dotted path."""
    if not (isinstance(off, dict) and isinstance(on, dict)):
        return path
    name = next(name for name in sorted({*off, *on}) if off.get(name) != on.get(name))
    return _difference(off.get(name), on.get(name), f"{path}.{name}")


def summarize(off, on, sampled=None):
    """The content of summary.json. Times in seconds; arms `off` and `on`; lists have one entry a training step.

    The first training step starts engines and compiles, so means and sums leave it out where there are others.
    `sampled` is what compare_answers found.
    """
    check_comparable(off, on)
    first = 1 if len(off.steps) > 1 else 0
    for name, run in (("off", off), ("on", on)):
        if not run.total("tokens", first) or not run.total("request_steps", first):
            raise ReportError(f"the {name} run counted no tokens from training step {first + 1} on")
    arms = {"off": _arm(off, first), "on": _arm(on, first)}

    def ratio(of):
        old, new = of(arms["off"]), of(arms["on"])
        return old / new if old and new else None

    tail_per_token = all(arm["tail_tokens"] for arm in arms.values())
    tail_speedup = ratio(lambda arm: arm["tail_s"] / arm["tail_tokens"] if tail_per_token else arm["tail_s"])
    speedups = {
        "rollout": ratio(lambda arm: arm["rollout_s"]),
        "step": ratio(lambda arm: arm["step_s"]),
        "rollout_per_token": ratio(lambda arm: arm["rollout_s"] / arm["tokens"]),
        "tail": tail_speedup,
    }
    return {
        **{name: on.record[name] for name in ("pin_set", "tree_ids", "seed", "threshold", "k")},
        "steps": len(on.steps),
        "first_step_counted": first + 1,
        "gain": {name: None if value is None else value - 1 for name, value in speedups.items()},
        "decode_steps_ratio": ratio(lambda arm: arm["decode_steps"]),
        "tail_speedup": tail_speedup,
        "tail_speedup_is_per_token": tail_per_token,
        "sampled": sampled,
        **arms,
    }


def _arm(run, first):
    def mean(metric):
        values = [step[metric] for step in run.steps[first:] if metric in step]
        return sum(values) / len(values) if values else None

    names = ("busy_s", "decode_steps", "request_steps", "tokens", "drafted", "accepted", "tail_s", "tail_tokens")
    totals = {name: run.total(name, first) for name in names}
    return {
        "rollout_s": mean("timing_s/gen"),
        "step_s": mean("timing_s/step"),
        "rollout_s_per_step": run.values("timing_s/gen"),
        "step_s_per_step": run.values("timing_s/step"),
        **totals,
        "tokens_per_step": totals["tokens"] / totals["request_steps"],
        "acceptance_rate": totals["accepted"] / totals["drafted"] if totals["drafted"] else None,
        "switch_on_share": mean(SPEC + "switch_on_share"),
        "draft_ms": mean(SPEC + "draft_ms"),
        "rewards": run.values("critic/rewards/mean"),
        "lengths": run.values("response_length/mean"),
    }


def table(summary):
    """The figures as rows of text: what, off, on, gain."""
    off, on, gain = summary["off"], summary["on"], summary["gain"]
    first = summary["first_step_counted"] - 1

    def line(what, of, form, gained=None):
        cells = ["-" if (value := of(arm)) is None else format(value, form) for arm in (off, on)]
        return [what, *cells, "" if gained is None else f"{gained:+.1%}"]

    rows = [
        line("rollout, s a training step", lambda arm: arm["rollout_s"], ".2f", gain["rollout"]),
        line("training step, s", lambda arm: arm["step_s"], ".2f", gain["step"]),
        line(
            "rollout, ms a token",
            lambda arm: 1e3 * (len(arm["rewards"]) - first) * arm["rollout_s"] / arm["tokens"],
            ".3f",
            gain["rollout_per_token"],
        ),
    ]
    per_token = summary["tail_speedup_is_per_token"]
    rows.append(line("tail, s", lambda arm: arm["tail_s"], ".2f", None if per_token else gain["tail"]))
    if per_token:
        rows.append(line("tail, ms a token", lambda arm: 1e3 * arm["tail_s"] / arm["tail_tokens"], ".3f", gain["tail"]))
    return [
        *rows,
        ["tail, times as fast", "1.00", f"{summary['tail_speedup']:.2f}", ""],
        line("engine steps", lambda arm: arm["decode_steps"], ",.0f"),
        line("tokens", lambda arm: arm["tokens"], ",.0f"),
        line("tokens a step", lambda arm: arm["tokens_per_step"], ".3f"),
        line("draft tokens verified", lambda arm: arm["drafted"], ",.0f"),
        line("draft tokens accepted", lambda arm: arm["accepted"], ",.0f"),
        line("acceptance", lambda arm: arm["acceptance_rate"], ".1%"),
        line("steps with the switch on", lambda arm: arm["switch_on_share"], ".1%"),
        line("drafting, ms an engine step", lambda arm: arm["draft_ms"], ".3f"),
        line("mean reward", lambda arm: sum(arm["rewards"][first:]) / len(arm["rewards"][first:]), "+.3f"),
        line("mean answer, tokens", lambda arm: sum(arm["lengths"][first:]) / len(arm["lengths"][first:]), ".1f"),
    ]


def text_table(rows):
    rows = [["", "SAM off", "SAM on", "gain"], *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2, 3))]).rstrip() for row in rows
    )


def markdown(summary):
    """The content of report.md."""
    rows = ["| | SAM off | SAM on | gain |", "|---|---:|---:|---:|"]
    rows += [f"| {' | '.join(row)} |" for row in table(summary)]
    steps = [
        "| step | reward off | reward on | length off | length on | rollout s off | rollout s on |",
        "|---" * 7 + "|",
    ]
    columns = [summary[arm][name] for name in ("rewards", "lengths", "rollout_s_per_step") for arm in ("off", "on")]
    for number, values in enumerate(zip(*columns, strict=True), 1):
        cells = [format(value, form) for value, form in zip(values, ["+.3f"] * 2 + [".1f"] * 4, strict=True)]
        steps.append(f"| {number} | {' | '.join(cells)} |")
    trees = ", ".join(f"{module} `{tree}`" for module, tree in summary["tree_ids"].items())
    first, last = summary["first_step_counted"], summary["steps"]
    notes = NOTES.format(
        first=first,
        last=last,
        skipped=" (the first one starts the engine and is left out)" if first > 1 else "",
        threshold=summary["threshold"],
        texts=SAME_TEXTS if summary["sampled"] else DIFFERENT_TEXTS,
    )
    return (
        "# Rollout with and without suffix-automaton drafting\n\n"
        f"Pin set {summary['pin_set']} ({trees}), seed {summary['seed']}, {last} training steps, "
        f"at most {summary['k']} draft tokens a step.\n\n"
        + "\n".join(rows)
        + f"\n\n{notes}\n![Pictures](report.png)\n\n"
        + (_sampled_section(summary["sampled"]) if summary["sampled"] else "")
        + "## Training steps\n\n"
        + "\n".join(steps)
        + "\n"
    )


def _sampled_section(sampled):
    rows = [
        "| step | answers of both | equal | tokens, SAM on | equal | log-probabilities differ by | off only | on only |",
        "|---" * 8 + "|",
    ]
    for row in sampled["steps"]:
        difference = "-" if row["log_prob_difference"] is None else f"{row['log_prob_difference']:.1e}"
        cells = [row["step"], row["answers"], row["answers_equal"], f"{row['tokens']:,}", f"{row['tokens_equal']:,}"]
        rows.append(f"| {' | '.join(map(str, [*cells, difference, row['only_off'], row['only_on']]))} |")
    return "## Sampled tokens\n\n" + sentence(sampled) + "\n\n" + "\n".join(rows) + "\n\n"


def write_reports(out, summary, off, on):
    """Write summary.json, report.md and report.png into `out`, none of them before all are made."""
    from llm_rl.reports import figure

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report.", dir=out) as made:
        made = Path(made)
        (made / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        (made / "report.md").write_text(markdown(summary))
        figure.draw(made / "report.png", summary, off, on)
        for path in sorted(made.iterdir()):
            path.replace(out / path.name)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.reports.compare",
        description="Compare two finished runs that differ in speculation alone.",
    )
    parser.add_argument("--off", type=Path, required=True, metavar="RUN_DIR", help="the run without speculation")
    parser.add_argument("--on", type=Path, required=True, metavar="RUN_DIR", help="the run with speculation")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the report")
    args = parser.parse_args(argv)
    try:
        off, on = read_run(args.off), read_run(args.on)
        summary = summarize(off, on, compare_answers(read_answers(args.off), read_answers(args.on)))
        write_reports(args.out, summary, off, on)
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the report cannot be written to {args.out}: {error.strerror}", file=sys.stderr)
        return 1
    print(text_table(table(summary)))
    if summary["sampled"]:
        print(sentence(summary["sampled"]))
    print(f"report: {args.out / 'report.md'}, {args.out / 'report.png'}, {args.out / 'summary.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
