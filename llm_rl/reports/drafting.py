# SPDX-License-Identifier: Apache-2.0
"""Gains and costs of drafting in a run: by position in the answer, by source, by running requests."""

import re
from statistics import median

from llm_rl.reports.runs import SPEC


def positions(run, first):
    """Rows {"from", "steps", "tokens"} from the `first` training step on, in order of the position in the answer.

    `steps` are engine steps of one request in which it had a draft, `tokens` what it gained in them; [] where the run
    did not log them.
    """
    starts = {int(m[1]) for step in run.steps[first:] for name in step if (m := _match("steps_from_(\\d+)", name))}
    return [
        {"from": at, "steps": run.total(f"steps_from_{at}", first), "tokens": run.total(f"tokens_from_{at}", first)}
        for at in sorted(starts)
    ]


def sources(run, first):
    """{source: {"proposed", "accepted"}}, draft tokens from the `first` training step on, of the sources that had some.

    {} where the run did not log them.
    """
    names = {m[1] for step in run.steps[first:] for name in step if (m := _match("proposed_(\\w+)", name))}
    counts = {name: {what: run.total(f"{what}_{name}", first) for what in ("proposed", "accepted")} for name in names}
    return {name: counts[name] for name in sorted(counts) if counts[name]["proposed"]}


def _match(pattern, name):
    return re.fullmatch(re.escape(SPEC) + pattern, name)


def step_costs(run, first):
    """Engine steps by running requests: rows that say what drafts cost and bring.

    A row has min_running, max_running, plain, plain_ms, drafted, drafted_ms and tokens_per_step.

    `plain`, `drafted`: engine steps without and with drafts from the `first` training step on; `..._ms`: the median of
    their milliseconds, None where there are none; `tokens_per_step`: what a request gained in a step with drafts. Rows
    are of 1, 2, 3 to 4, 5 to 8 running requests, and so on. Steps after idleness, which have no time, are left out.
    [] without engine logs.
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
