# SPDX-License-Identifier: Apache-2.0
"""Small run folders like those of a recipe."""

import json

THRESHOLD = 2


def engine_rows(start, seconds, drafting):
    """One rollout of 3 requests and 40 tokens: 10 steps of 3, then 10 of 1 (5 of 2 tokens each when drafting)."""
    rows, now = [[start, 0.0, 0, 0, 0, 0]], start
    for running in [3] * 10 + [1] * (5 if drafting else 10):
        drafts = drafting and running <= THRESHOLD
        rows.append([now, seconds, running, running * (2 if drafts else 1), 3 * drafts, 1 * drafts])
        now += seconds
    return rows


def write_run(folder, sam, steps=3, engine=True, **record):
    """Write a run folder whose first training step is ten times as slow as the others."""
    on = sam != "off"
    folder.mkdir(exist_ok=True)
    run = {"pin_set": "p", "tree_ids": {"m": "t"}, "seed": 7, "sam": sam, "threshold": THRESHOLD, "k": 3}
    (folder / "run.json").write_text(json.dumps(run | {"steps": steps, "status": "ok"} | record))
    lines, rows, start = [], [], 1000.0
    for number in range(1, steps + 1):
        slow = 10 if number == 1 else 1
        of_step = engine_rows(start, 0.1 * slow, on)
        busy = sum(row[1] for row in of_step)
        start += busy + 5
        rows += of_step
        tail = [row for row in of_step if 0 < row[2] <= THRESHOLD]
        sums = (sum(row[item] for row in of_step) for item in (2, 3, 4, 5))
        spec = dict(zip(("request_steps", "tokens", "drafted", "accepted"), sums, strict=True))
        spec |= {"decode_steps": len(of_step) - 1, "cpu_s": 1.0 if on else 1.5}
        spec |= {"tail_s": sum(row[1] for row in tail), "tail_tokens": sum(row[3] for row in tail)}
        if on:
            spec |= {"switch_on_share": 1 / 3, "draft_ms": 0.2, "index_bytes": number << 20}
            spec |= {"proposed_request": 12, "accepted_request": 5, "proposed_group": 4, "accepted_group": 1}
            spec |= {"steps_from_0": 4, "tokens_from_0": 6, "steps_from_1024": 1, "tokens_from_1024": 3}
            spec |= {"proposed_corpus": 0}
        data = {"timing_s/gen": busy + 0.5, "timing_s/step": busy + 3.5}
        counts = {"1e-07": 30, "1e-06": 9 if on else 10, "inf": int(on)}
        data |= {f"rollout_corr/log_prob_diff/{bound}/total": count for bound, count in counts.items()}
        data |= {"critic/rewards/mean": -0.5 + 0.1 * number, "response_length/mean": 13.0}
        data |= {f"rollout/spec/{name}": value for name, value in spec.items()}
        lines.append(json.dumps({"step": number, "data": data}))
    (folder / "steps.jsonl").write_text("".join(line + "\n" for line in lines))
    if engine:
        (folder / "engine-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_answers(folder, answers, name="answers-1.jsonl"):
    """`answers`: {(step, prompt, sibling): (prompt's hash, tokens, log-probabilities)}."""
    (folder / name).write_text("".join(json.dumps([*place, *answer]) + "\n" for place, answer in answers.items()))


def edit_steps(folder, numbers, **changes):
    """Change metrics in these lines of steps.jsonl, counted from 1; None removes a metric."""
    path = folder / "steps.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for number in numbers:
        data = entries[number - 1]["data"] | changes
        entries[number - 1]["data"] = {name: value for name, value in data.items() if value is not None}
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
