# SPDX-License-Identifier: Apache-2.0
"""Gains and costs of drafting in a run, by position in the answer, by source, and by running requests."""

import re
from statistics import median

from llm_rl.reports.runs import SPEC


def positions(run, first):
    """Rows {"from", "steps", "tokens"} since the `first` training step, by position in the answer.

    steps: steps of single requests with a draft; tokens: tokens gained in these steps. [] if the run did not log them.
    """
    starts = {int(m[1]) for step in run.steps[first:] for name in step if (m := _match("steps_from_(\\d+)", name))}
    return [
        {"from": at, "steps": run.total(f"steps_from_{at}", first), "tokens": run.total(f"tokens_from_{at}", first)}
        for at in sorted(starts)
    ]


def sources(run, first):
    """Draft tokens since the `first` training step, {source: {"proposed", "accepted"}}, for sources that proposed any.

    {} if the run did not log them.
    """
    names = {m[1] for step in run.steps[first:] for name in step if (m := _match("proposed_(\\w+)", name))}
    counts = {name: {what: run.total(f"{what}_{name}", first) for what in ("proposed", "accepted")} for name in names}
    return {name: counts[name] for name in sorted(counts) if counts[name]["proposed"]}


def _match(pattern, name):
    return re.fullmatch(re.escape(SPEC) + pattern, name)


def step_costs(run, first):
    """Costs and gains of drafts by running requests, since the `first` training step.

    A row has min_running, max_running (1, 2, 3 to 4, 5 to 8, ...), plain and drafted (engine steps without and with
    drafts), plain_ms and drafted_ms (their median milliseconds, None without steps) and tokens_per_step (tokens gained
    per request and step with drafts). Excludes steps after idleness, which have no time. [] without engine logs.
    """
    groups: dict[int, tuple[list, list]] = {}
    for part in run.engine[first:]:
        for _, _, seconds, running, tokens, drafted, _ in part:
            if seconds > 0:
                plain, drafting = groups.setdefault((running - 1).bit_length(), ([], []))
                (drafting if drafted else plain).append((seconds, running, tokens))
    rows = []
    for power, (plain, drafting) in sorted(groups.items()):
        requests = sum(running for _, running, _ in drafting)
        rows.append(
            {
                "min_running": 2 ** (power - 1) + 1 if power else 1,
                "max_running": 2**power,
                "plain": len(plain),
                "plain_ms": 1e3 * median(row[0] for row in plain) if plain else None,
                "drafted": len(drafting),
                "drafted_ms": 1e3 * median(row[0] for row in drafting) if drafting else None,
                "tokens_per_step": sum(row[2] for row in drafting) / requests if requests else None,
            }
        )
    return rows
